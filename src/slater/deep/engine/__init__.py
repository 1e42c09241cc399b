"""The one loop in which every algorithm trains, and the folder that it leaves."""
