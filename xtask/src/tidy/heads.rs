//! Every Rust file opens with `//!`: what it is, and what it leaves to whom. A reader should know within two lines
//! whether this is the file to read.

use anyhow::Result;

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let without_head = tree.rust.iter().filter(|file| !file.text.starts_with("//!"));
    Ok(without_head.map(|file| Finding::at(&file.path, 1, "begin with `//!`: what is this file?")).collect())
}
