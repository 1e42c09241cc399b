"""Where candidate policies come from: clones of behaviours, advantage-weighted clones, players."""
