"""From network outputs to actions: token sampling, codecs, flow mathematics, noise."""
