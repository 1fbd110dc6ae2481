//! Labels of seeds: keys and values with which users find seeds.

use std::collections::HashMap;

use tonic::Code;

use farfork_api::failure::Failure;
use farfork_api::limits::LABEL_BYTES_MAX;

/// Maximum number of labels of a seed: each list of seeds contains all labels.
const LABELS_MAX: usize = 16;

/// Checks the labels of a new seed.
///
/// # Errors
/// There are too many labels, or one is malformed.
pub(crate) fn check_labels(labels: &HashMap<String, String>) -> Result<(), Failure> {
    let refuse = |object: String, cause: String| Err(Failure::new(Code::InvalidArgument, object, cause));
    if labels.len() > LABELS_MAX {
        return refuse(
            "labels".to_owned(),
            format!("{} are more than the {LABELS_MAX} that a seed may have", labels.len()),
        );
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let fits = |text: &str| text.len() <= LABEL_BYTES_MAX && text.bytes().all(is_plain);
    match labels.iter().find(|(name, value)| name.is_empty() || !fits(name) || !fits(value)) {
        Some((name, value)) => refuse(
            match name.len().max(value.len()) {
                0..=LABEL_BYTES_MAX => format!("label `{name}={value}`"),
                bytes => format!("label with a name or value of {bytes} bytes"),
            },
            format!("name and value are up to {LABEL_BYTES_MAX} letters, digits, `-`, `_`, `.` and `/`"),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_labels;

    #[test]
    fn labels_are_limited_in_number_and_characters() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(check_labels(&labels(&[("team", "a"), ("app/kind", "")])).is_ok());
        assert!(check_labels(&labels(&[("", "a")])).is_err() && check_labels(&labels(&[("a", "b c")])).is_err());
        let many = (0..17).map(|number| (number.to_string(), String::new())).collect();
        assert!(check_labels(&many).is_err());
    }
}
