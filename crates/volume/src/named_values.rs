//! Options with a fixed set of values: their names on the command line.

/// Implements `ALL`, `name`, `Display` and `FromStr` for an enum without fields.
macro_rules! named_values {
    ($option:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $option {
            /// All values, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the name of the value on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $option {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $option {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|value| value.name() == text);
                found.ok_or_else(|| format!("choose one of {}", [$($name),+].join(", ")))
            }
        }
    };
}

pub(crate) use named_values;
