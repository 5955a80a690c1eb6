"""A model in plain Python: letter-pair counts in, a score for each of four languages out (cosine similarity)."""

import numpy as np

LANGUAGES = ("de", "en", "es", "fr")
SAMPLES = {
    "de": "Das Wasser fließt durch den Kanal und treibt das große Rad der Mühle an. Wenn es im Sommer wenig regnet, "
    "steht die Mühle still, und die Leute warten auf den nächsten Regen. Ich glaube nicht, dass sie noch lange warten.",
    "en": "The water runs through the channel and turns the great wheel of the mill. When there is little rain in the "
    "summer, the mill stands still, and the people wait for the next rain. I do not think that they will wait long.",
    "es": "El agua corre por el canal y mueve la gran rueda del molino. Cuando llueve poco en el verano, el molino se "
    "queda quieto y la gente espera la próxima lluvia. No creo que tengan que esperar mucho tiempo más.",
    "fr": "L'eau coule dans le canal et fait tourner la grande roue du moulin. Quand il pleut peu pendant l'été, le "
    "moulin reste immobile et les gens attendent la prochaine pluie. Je ne pense pas qu'ils attendent longtemps.",
}
ALPHABET = " abcdefghijklmnopqrstuvwxyz"


def letter_pairs(text: str) -> np.ndarray:
    """How often each pair of letters follows one another: float32 (27 * 27,); everything else counts as a space."""
    codes = np.array([0, *(max(0, ALPHABET.find(letter)) for letter in text.lower()), 0])
    return np.bincount(codes[:-1] * 27 + codes[1:], minlength=27 * 27).astype(np.float32)


class Language:
    """Life: `load` once, then `infer` for each batch, in one thread at a time unless `thread_safe` says otherwise."""

    thread_safe = True

    def load(self) -> None:
        profiles = np.stack([letter_pairs(SAMPLES[name]) for name in LANGUAGES])
        self.profiles = profiles / np.linalg.norm(profiles, axis=1, keepdims=True)

    def infer(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        pairs = tensors["pairs"]
        norms = np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-6)
        return {"scores": (pairs / norms) @ self.profiles.T}
