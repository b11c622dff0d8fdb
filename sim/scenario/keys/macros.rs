//! How a key is declared: once, with all that is known of it.

/// A table of a scenario file: its struct, as serde reads it, and the row of each of its keys.
///
/// A key is a field: what it says, its type, the frameworks that read it, and what each of them takes where the file leaves it out, of
/// which release, and on which line. What it takes follows from its type ([`Takes`](super::takes::Takes)) unless `as` says more. Tables within the table
/// stand at its end: their keys are declared `within` it.
macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        #[derive($($derive:ident),+)]
        [$table:literal] $name:ident in $group:ident $(.$set:ident($($to:tt)*))*;
        $($rows:tt)*
    ) => {
        keys! {
            $(#[doc = $about])+
            #[derive($($derive),+)]
            within (concat!($table, ".")) "", $name;
            $($rows)*
        }

        impl $name {
            /// Its keys, and what is said of all of them.
            pub(in crate::scenario) const TABLE: $crate::scenario::keys::row::Table =
                $crate::scenario::keys::row::Table::new(
                    $table,
                    concat!($($about),+),
                    $crate::scenario::keys::row::Group::$group,
                    $name::KEYS,
                )$(.$set($($to)*))*;
        }
    };
    (
        $(#[doc = $about:literal])+
        #[derive($($derive:ident),+)]
        within ($path:expr) $within:literal, $name:ident;
        $(
            $(#[doc = $help:literal])+
            $(#[serde($($serde:tt)+)])?
            $field:ident: $type:ty $(as $kind:expr)? => $read_by:ident $(.$what:ident($($value:tt)*))*
            $(default $taken_by:expr => $taken:literal of $release:literal at $place:literal)*;
        )*
        $(tables {
            $(
                $(#[$meta:meta])+
                $inner:ident: $inner_type:ty;
            )+
        })?
    ) => {
        $(#[doc = $about])+
        #[derive($($derive),+)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $help])+
                $(#[serde($($serde)+)])?
                pub $field: $type,
            )*
            $($(
                $(#[$meta])+
                pub $inner: $inner_type,
            )+)?
        }

        #[allow(non_upper_case_globals, dead_code, reason = "a key is named as its field is, and not every one is named outside")]
        impl $name {
            $(
                $(#[doc = $help])+
                pub(in crate::scenario) const $field: $crate::scenario::keys::row::Key =
                    $crate::scenario::keys::row::Key::new(
                        concat!($path, $within, stringify!($field)),
                        takes!($type $(, $kind)?),
                        $read_by,
                        concat!($($help),+),
                    )$(.$what($($value)*))*.defaults(&[$(
                        $crate::scenario::keys::row::Preset {
                            frameworks: $taken_by,
                            value: $taken,
                            release: $release,
                            place: $place,
                        }
                    ),*]);
            )*

            /// Its keys, in the order that people write them.
            pub(in crate::scenario) const KEYS: &'static [$crate::scenario::keys::row::Key] = &[$(Self::$field),*];
        }
    };
}

/// What a key takes: what its type does, or what its declaration says.
macro_rules! takes {
    ($type:ty) => {
        <$type as $crate::scenario::keys::takes::Takes>::KIND
    };
    ($type:ty, $kind:expr) => {
        $kind
    };
}

/// Words that a key takes, each a variant; `of` says what stands beside one in a table, `{ every = N }`.
macro_rules! words {
    (
        $(#[$meta:meta])+
        pub enum $name:ident {
            $(
                $(#[$about:meta])+
                $variant:ident $(($data:ty))? = $word:literal $(of $what:literal)?,
            )+
        }
    ) => {
        $(#[$meta])+
        pub enum $name {
            $(
                $(#[$about])+
                #[serde(rename = $word)]
                $variant $(($data))?,
            )+
        }

        impl $crate::scenario::keys::takes::Takes for $name {
            const KIND: $crate::scenario::keys::row::Kind = $crate::scenario::keys::row::Kind::Choice(&[
                $($crate::scenario::keys::row::choice($word, &[$($what)?])),+
            ]);
            const WORDS: &'static [&'static str] = &[$($word),+];
        }
    };
}
