"""From an Ansible inventory of bare Xeon hosts to a fine-tuned Hugging Face model."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())
