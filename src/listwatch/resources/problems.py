"""What is wrong with an object."""

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """A reason for which a server would refuse an object.

    Attributes:
        field: its path, such as "spec.replicas".
        message: the server's message.
        reason: the server's reason, such as "FieldValueInvalid".
    """

    field: str
    message: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
