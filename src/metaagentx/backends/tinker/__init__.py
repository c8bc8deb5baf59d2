"""The tinker backend: LoRAs that a server of the Tinker API samples and trains, such as SkyRL on a cluster."""
