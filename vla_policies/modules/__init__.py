"""Network parts and training aids that families share."""

import logging

# peft imports bitsandbytes wherever it is installed, which on a CPU reports the lack of a kernel that is not used here.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
