//! Words that hide the subject: pronouns, metaphors and participles. `names` refuses them in the names of items; `ratchets`
//! counts them in other names, in comments and in documents.

/// Words of names, and their replacements.
pub(super) const NAME_WORDS: &[(&str, &str)] = &[
    ("area", "region or mapping"),
    ("asked", "requested"),
    ("bear", "fork"),
    ("bearer", "forker"),
    ("begun", "started"),
    ("behind", "after"),
    ("beside", "next_to"),
    ("birth", "fork"),
    ("born", "forked"),
    ("came", "arrived"),
    ("cradle", "what it holds"),
    ("crowd", "fan_out"),
    ("deed", "action"),
    ("desk", "session_table"),
    ("foretell", "prewarm"),
    ("foretold", "prewarmed"),
    ("given", "granted"),
    ("guest", "client"),
    ("hall", "connection_table"),
    ("hear", "receive"),
    ("heard", "received"),
    ("hears", "receives"),
    ("heir", "successor"),
    ("heirs", "successors"),
    ("kin", "child or relations"),
    ("kinship", "process_relations"),
    ("letter", "message"),
    ("lifeline", "injection_pages"),
    ("likeness", "identity"),
    ("midwife", "intermediate"),
    ("moment", "timestamp"),
    ("nest", "directory"),
    ("nobody", "none"),
    ("patience", "timeout"),
    ("porch", "accept_queue"),
    ("said", "reported"),
    ("somebody", "the role: waiter, peer, client"),
    ("spool", "send_queue"),
    ("standing", "state"),
    ("stands", "is_ready"),
    ("stood", "paused or restored"),
    ("tend", "maintain"),
    ("told", "reported"),
    ("ward", "pending_fork"),
    ("welcome", "accept"),
    ("who", "the role: caller, owner, peer"),
    ("whoever", "the role"),
    ("whom", "the role: recipient, target"),
    ("whose", "owner"),
];

/// Words and phrases that plain sentences in comments and documents do not need.
pub(super) const PROSE: &[&str] = &[
    "be it",
    "behind",
    "beside",
    "bears",
    "born",
    "comes",
    "goes",
    "hear",
    "heard",
    "hears",
    "kin",
    "may be had",
    "midwife",
    "nobody",
    "somebody",
    "stands",
    "such as come",
    "tells of",
    "that of",
    "told",
    "what is",
    "whoever",
    "whosoever",
];

/// The words of an identifier, in lower case: `FooBar` and `foo_bar` have two.
pub(super) fn words_of(identifier: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous_is_lower = false;
    for c in identifier.chars() {
        if c == '_' {
            previous_is_lower = false;
            words.push(String::new());
            continue;
        }
        if words.is_empty() || (c.is_uppercase() && previous_is_lower) {
            words.push(String::new());
        }
        previous_is_lower = !c.is_uppercase();
        words.last_mut().expect("a word was begun").extend(c.to_lowercase());
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The first stop-list word in an identifier, with its replacement.
pub(super) fn find_in_name(identifier: &str) -> Option<(&'static str, &'static str)> {
    let words = words_of(identifier);
    NAME_WORDS.iter().copied().find(|(word, _)| words.iter().any(|w| w == word))
}

/// The number of stop-list words and phrases in a text.
pub(super) fn count_in_prose(text: &str) -> usize {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<String> =
        text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    let joined = format!(" {} ", words.join(" "));
    PROSE.iter().map(|phrase| joined.matches(&format!(" {phrase} ")).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(words_of("ChildAssignment"), ["child", "assignment"]);
        assert_eq!(words_of("HELD_BYTES_MAX"), ["held", "bytes", "max"]);
        assert_eq!(words_of("_r#type"), ["r#type"]);
    }

    #[test]
    fn a_stop_word_is_a_whole_word() {
        assert_eq!(find_in_name("WhoseFork").map(|(word, _)| word), Some("whose"));
        assert_eq!(find_in_name("kind_of_bearing"), None);
        assert_eq!(count_in_prose("Whoever hears, stands; what is\nthat of it?"), 5);
        assert_eq!(count_in_prose("`kind` and the_kin and beside_it"), 0);
    }
}
