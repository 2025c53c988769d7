"""Why a signal was not taken."""


class NotAccepted(Exception):
    """The signal was not taken; *sentence* says why, without a query string or a credential.

    again: whether the same request may succeed in a moment. dead: whether the host is not worth
    another try in this pass. refused: whether the server refused it, but may accept it later.
    final: whether no try can ever succeed.
    """

    def __init__(self, sentence, *, again=False, dead=False, refused=False, final=False):
        super().__init__(sentence)
        self.sentence = sentence
        self.again = again
        self.dead = dead
        self.refused = refused
        self.final = final
