"""Consumer groups of KIP-848: members say what they are subscribed to and what they own, the coordinator says what they shall own."""
