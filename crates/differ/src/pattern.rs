//! Patterns of field names: `*` matches any text; every other character matches itself.

/// Whether a pattern matches a text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, behind)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(before) else { return false };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    behind.is_empty() || starts.any(|at| matches(behind, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_matches_any_text() {
        assert!(matches("fd/*/info/ino", "fd/17/info/ino"));
        assert!(matches("fd/*/option/*/SO_COOKIE", "fd/17/option/SOL_SOCKET/SO_COOKIE"));
        assert!(matches("ns/*", "ns/"));
        assert!(!matches("fd/*/info/ino", "fd/17/info/inode"));
        assert!(!matches("fd/*", "status/FDSize"));
    }
}
