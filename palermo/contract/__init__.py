"""The contract: the interfaces of brokers, serializers and plug-ins, and the values that they share with the rest."""
