"""The contract: what a broker, a serializer and a plug-in must do, and the values that they share with the rest."""
