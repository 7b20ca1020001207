"""The paper's claims, each checked on our scores: in come scores, out go verdicts with the numbers they rest on."""
