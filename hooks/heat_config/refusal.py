"""The error of a signal that was not accepted."""

from __future__ import annotations


class NotAccepted(Exception):
    """The signal was not accepted; *sentence* explains it, without a query string or a credential.

    again: the same request may succeed in a moment. dead: the host is not worth another try in
    this pass. refused: the server refused it, but may accept it later. final: no try can succeed.
    """

    def __init__(
        self,
        sentence: str,
        *,
        again: bool = False,
        dead: bool = False,
        refused: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.again = again
        self.dead = dead
        self.refused = refused
        self.final = final


class Misconfigured(NotAccepted):
    """No request can be made with the address, or with the settings of this machine."""
