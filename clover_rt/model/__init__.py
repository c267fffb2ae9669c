"""What a checkpoint says about its model: configuration, generation defaults, tensor names."""
