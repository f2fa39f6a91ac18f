"""What differs between the versions of transformers that the stacks have."""


def dtype_keyword(version: str) -> str:
    """The keyword of `from_pretrained` for the weights' type.

    It has to be given: transformers 5 takes the checkpoint's own type otherwise, 4 takes fp32. 4.56
    renamed it (transformers pull request 39782).
    """
    major, minor = (int(number) for number in version.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
