"""What tests share: models, checkpoints, servers, schedulers and definitions made for them."""
