"""The suite's objects, plates, tables and sentences as data: names, boxes, densities. No file is needed to read them.

Source: the three `model_db.json` of the published asset pack (gen-robot/RL4VLA, `ManiSkill/mani_skill/assets/carrot`).
Positions in the tuples are the ids that episode ids are made of. Lengths in metres, densities in kg/m^3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Thing:
    """An object or a plate."""

    folder: str
    """Its folder in the asset pack: number, name, kind of model."""
    low: tuple[float, float, float]
    """Lower corner of its box, in its own frame."""
    high: tuple[float, float, float]
    density: float

    @property
    def name(self) -> str:
        """Its name in sentences."""
        return self.folder[4:].rpartition("_")[0]

    @property
    def size(self) -> np.ndarray:
        """Sides of the box, float64 `[3]`."""
        return np.subtract(self.high, self.low)

    @property
    def middle(self) -> np.ndarray:
        """Middle of the box in its own frame, float64 `[3]`."""
        return np.add(self.low, self.high) / 2


@dataclass(frozen=True)
class Table:
    """A photo laid behind robot and objects, and the texture that some runs blend in."""

    image: str
    """File in `more_table/imgs`."""
    texture: str
    """File in `more_table/textures`."""
    mix: float
    """Largest share of the texture, 0 .. 1."""


OBJECTS: tuple[Thing, ...] = (
    Thing("001_carrot_simpler", (-0.064146, -0.016275, -0.017784), (0.054168, 0.015944, 0.02342), 1044),
    Thing("002_kitchen shovel_1", (-0.028514, -0.061222, -0.012314), (0.028577, 0.087642, 0.00891), 557),
    Thing("003_bread_1", (-0.022195, -0.022384, -0.014578), (0.022278, 0.022476, 0.014546), 526),
    Thing("004_plastic bottle_1", (-0.017176, -0.052353, -0.017914), (0.018893, 0.069187, 0.021117), 1916),
    Thing("005_7up can_1", (-0.016542, -0.031393, -0.016354), (0.016558, 0.029607, 0.016746), 790),
    Thing("006_zuchinni_1", (-0.061465, -0.018381, -0.012294), (0.04864, 0.012328, 0.013661), 715),
    Thing("007_ketchup bottle_1", (-0.0104, -0.03743, -0.010421), (0.010409, 0.043878, 0.010417), 500),
    Thing("008_watering can_1", (-0.044345, -0.020049, -0.019221), (0.067933, 0.020622, 0.029642), 1591),
    Thing("009_pipe_1", (-0.01733, -0.036932, -0.01733), (0.01733, 0.036932, 0.01733), 1116),
    Thing("010_toy bear_1", (-0.020858, -0.021149, -0.026055), (0.021693, 0.017456, 0.030326), 667),
    Thing("011_fast food cup_1", (-0.012405, -0.012441, -0.021972), (0.012401, 0.012368, 0.031721), 500),
    Thing("012_plant_1", (-0.022002, -0.021402, -0.041142), (0.018943, 0.021147, 0.031418), 1051),
    Thing("013_banana_1", (-0.053817, -0.026072, -0.009194), (0.053817, 0.013978, 0.009194), 500),
    Thing("014_hamburger_1", (-0.02503, -0.026089, -0.018934), (0.024251, 0.024906, 0.022287), 863),
    Thing("015_golf ball_1", (-0.015288, -0.0153, -0.01529), (0.015288, 0.0153, 0.01529), 500),
    Thing("016_BBQ sauce_1", (-0.026546, -0.01622, -0.02861), (0.026459, 0.016241, 0.048556), 1057),
    Thing("017_travel cup_1", (-0.019803, -0.040252, -0.017219), (0.031988, 0.045575, 0.017189), 1018),
    Thing("018_pepper_1", (-0.022081, -0.022534, -0.02278), (0.022081, 0.022534, 0.02278), 835),
    Thing("019_nonstop can_1", (-0.017359, -0.017381, -0.042844), (0.017399, 0.017377, 0.042476), 1248),
    Thing("020_potato_1", (-0.024426, -0.03702, -0.022543), (0.024596, 0.037041, 0.022047), 1355),
    Thing("021_baguette_1", (-0.017872, -0.070771, -0.012416), (0.02046, 0.068207, 0.013337), 1367),
    Thing("022_champagne glass_1", (-0.014222, -0.014222, -0.054144), (0.014222, 0.014222, 0.031337), 500),
    Thing("023_kitchen spoon_1", (-0.02477, -0.076108, -0.00142), (0.024772, 0.050176, 0.015787), 500),
    Thing("024_onion_1", (-0.025607, -0.031256, -0.025675), (0.025328, 0.030985, 0.02549), 1137),
    Thing("025_cup_1", (-0.02215, -0.022167, -0.001195), (0.03651, 0.022121, 0.036034), 1018),
)
"""0-15 are trained on, 16-24 only tested."""

PLATES: tuple[Thing, ...] = (
    Thing("001_plate_simpler", (-0.055, -0.055, 0.0), (0.055, 0.055, 0.006), 1003),
    Thing("002_cloth_1", (-0.052668, -0.054186, -0.00186), (0.057332, 0.055814, 0.007514), 6975),
    Thing("003_carpet_1", (-0.054271, -0.047153, -0.00115), (0.055729, 0.047066, 0.002593), 2815),
    Thing("004_newspaper_1", (-0.041165, -0.056247, -4.3e-05), (0.040317, 0.059925, 0.0041), 2278),
    Thing("005_sheet metal_1", (-0.055458, -0.047227, -0.001946), (0.055341, 0.047104, 0.001294), 2389),
    Thing("006_drawing tablet_1", (-0.056342, -0.042009, -0.002881), (0.056457, 0.042009, 0.000709), 2868),
    Thing("007_tomato slice_1", (-0.055, -0.055, -0.002171), (0.055, 0.055, 0.002171), 3089),
    Thing("008_pizza_1", (-0.054532, -0.054193, -0.002682), (0.055468, 0.055807, 0.003863), 3862),
    Thing("009_flat bowl_1", (-0.055, -0.055, -0.004884), (0.055, 0.055, 0.007062), 4847),
    Thing("010_gramophone disk_1", (-0.055, -0.055, -0.001328), (0.055, 0.055, 0.001328), 2193),
    Thing("011_frying pan_1", (-0.054997, -0.048902, -0.002667), (0.055003, 0.061098, 0.005808), 5104),
    Thing("012_mouse pad_1", (-0.053899, -0.054489, 0.000196), (0.056101, 0.055511, 0.006574), 3332),
    Thing("013_cutting board_1", (-0.063114, -0.054989, -0.001338), (0.063114, 0.054989, 0.001338), 3107),
    Thing("014_chess board_1", (-0.055, -0.055, -0.003), (0.055, 0.055, 0.003), 6368),
    Thing("015_manhole cover_1", (-0.055, -0.055, -0.002247), (0.055, 0.055, 0.002247), 3743),
    Thing("016_envelope_1", (-0.054999, -0.040242, -0.001289), (0.055001, 0.039758, 0.001691), 1824),
    Thing("017_notepad_1", (-0.055, -0.04, -0.002), (0.055, 0.04, 0.002), 3087),
)
"""0 is trained on, 1-16 only tested."""

TABLES: tuple[Table, ...] = (
    Table("001_table_simpler.png", "001.png", 0.0),
    Table("002_blue plastic table_1.png", "002.png", 1.0),
    Table("003_TV cabinet_1.png", "003.png", 1.0),
    Table("004_picnic table_1.png", "004.png", 1.0),
    Table("005_dest_1.png", "005.png", 1.0),
    Table("006_table_1.png", "006.png", 1.0),
    Table("007_yellow desk_1.png", "007.png", 1.0),
    Table("008_table_2.png", "008.png", 1.0),
    Table("009_table_3.png", "009.png", 1.0),
    Table("010_table_4.png", "010.png", 1.0),
    Table("011_table_5.png", "011.png", 1.0),
    Table("012_pink table_1.png", "012.png", 1.0),
    Table("013_table_6.png", "013.png", 1.0),
    Table("014_grass table_1.png", "014.png", 1.0),
    Table("015_table_7.png", "015.png", 1.0),
    Table("016_coloful desk_1.png", "016.png", 1.0),
    Table("017_glass table_1.png", "017.png", 1.0),
    Table("018_green table_1.png", "018.png", 1.0),
    Table("019_pink desk_1.png", "019.png", 1.0),
    Table("020_stone table_1.png", "020.png", 1.0),
    Table("021_dining table_2.png", "021.png", 1.0),
)
"""0-15 are trained on, 16-20 only tested. Table 0 is the plain one: no texture."""

TEMPLATES = (
    "put {object} on {plate}",
    "Place the {object} on the {plate}",
    "set {object} on {plate}",
    "move the {object} to the {plate}",
    "Take the {object} and put it on the {plate}",
    "pick up {object} and set it down on {plate}",
    "please put the {object} on the {plate}",
    "Put {object} onto {plate}.",
    "place the {object} onto the {plate} surface",
    "Make sure {object} is on {plate}.",
    "on the {plate}, put the {object}",
    "put the {object} where the {plate} is",
    "Move the {object} from the table to the {plate}",
    "Move {object} so it\u2019s on {plate}.",
    "Can you put {object} on {plate}?",
    "{object} on the {plate}, please.",
    "the {object} should be placed on the {plate}.",
    "Lay the {object} down on the {plate}.",
    "could you place {object} over {plate}",
    "position the {object} atop the {plate}",
    "Arrange for the {object} to be resting on {plate}.",
)
"""By template id: 0 is the trained wording, 1-16 are the Instruct run's, 17-20 are published but unused. The apostrophe
of 13 is the published curly one (U+2019)."""
