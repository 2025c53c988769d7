"""The error of a signal that was not accepted."""


class NotAccepted(Exception):
    """The signal was not accepted; *sentence* explains it, without a query string or a credential.

    again: the same request may succeed in a moment. dead: the host is not worth another try in
    this pass. refused: the server refused it, but may accept it later. final: no try can succeed.
    """

    def __init__(self, sentence, *, again=False, dead=False, refused=False, final=False):
        super().__init__(sentence)
        self.sentence = sentence
        self.again = again
        self.dead = dead
        self.refused = refused
        self.final = final
