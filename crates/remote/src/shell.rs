//! Quotes words for a POSIX shell. sshd(8) passes a command as one string to the login shell of the user.

/// Returns `word` in a form that a POSIX shell reads as this one word.
///
/// The word must not contain NUL, which no argument of a program can contain.
pub fn quote(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    // Within single quotes, all characters but the quote itself are literal.
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Quotes words and joins them with spaces.
pub fn quote_all<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Whether a shell accepts `name` as the name of a variable.
pub fn is_variable_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_first) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::{is_variable_name, quote_all};

    /// Prints each argument with a final NUL, which no argument contains.
    const PRINT_ARGUMENTS: &str = r#"for word do printf '%s\0' "$word"; done"#;

    #[test]
    fn names_of_variables_are_checked() {
        assert!(is_variable_name("_A1"));
        assert!(["", "1A", "A-B", "A=B", "A B", "A\n"].iter().all(|name| !is_variable_name(name)));
    }

    /// Passes words through two shells, as sshd(8) and a script do. Returns the arguments that the script gets.
    fn arguments_after_shells(words: &[String]) -> Vec<String> {
        let script = ["sh", "-c", PRINT_ARGUMENTS, "sh"].into_iter().chain(words.iter().map(String::as_str));
        let output = Command::new("sh").args(["-c", &quote_all(script)]).output().expect("sh(1) runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8 stays UTF-8");
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn special_characters_are_literal() {
        let words = [
            "",
            " ",
            "a b",
            "it's",
            "''",
            "\"$HOME\"",
            "$(id)",
            "`id`",
            "a\nb\n",
            "-n",
            "--",
            "\\",
            "*",
            "~",
            "#",
            "!x",
            "é",
        ];
        let words = words.map(str::to_owned);
        assert_eq!(arguments_after_shells(&words), words);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_words_are_preserved(words in prop::collection::vec("[^\0]{0,24}", 0..6)) {
            prop_assert_eq!(arguments_after_shells(&words), words);
        }

        #[test]
        fn words_of_shell_syntax_are_preserved(words in prop::collection::vec(r#"[ '"$`\\\n\t*?~#&|;<>(){}=!-]{0,12}"#, 0..6)) {
            prop_assert_eq!(arguments_after_shells(&words), words);
        }
    }
}
