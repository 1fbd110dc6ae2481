//! Frames of the fabric.
