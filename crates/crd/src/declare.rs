//! Macros that declare a type once and derive from it both its JSON form and its schema.
//!
//! A derive of a schema crate would do for the fields, but the definitions must be structural, words may be empty, and lists and maps may be
//! null; here these are the rule instead of an annotation on each field.

/// A JSON object. `field: Type` is written in camel case, `field: Type = "wireName"` as it says.
macro_rules! object {
    ($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty $(= $wire:literal)?,)*
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[doc = $field_doc])+
                #[serde($(rename = $wire,)? deserialize_with = "crate::scalar::null_is_default")]
                #[serde(skip_serializing_if = "crate::scalar::Omit::omit")]
                pub $field: $type,
            )*
        }

        impl crate::difference::Difference for $name {
            fn since(&self, was: &Self) -> serde_json::Map<String, serde_json::Value> {
                let mut patch = serde_json::Map::new();
                $(
                    if self.$field != was.$field {
                        let name = crate::schema::wire_name(stringify!($field), [$($wire)?].first().copied());
                        crate::difference::put(&mut patch, name, &was.$field, &self.$field);
                    }
                )*
                patch
            }
        }

        impl crate::schema::Schema for $name {
            fn schema() -> serde_json::Value {
                let mut properties = serde_json::Map::new();
                $({
                    let name = crate::schema::wire_name(stringify!($field), [$($wire)?].first().copied());
                    let doc = concat!($($field_doc),+);
                    properties.insert(name, crate::schema::described(<$type as crate::schema::Schema>::schema(), doc));
                })*
                serde_json::json!({"type": "object", "properties": properties})
            }
        }

        impl crate::scalar::Omit for $name {}
    };
}

/// A string of which only some values have a meaning; the first is the default.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident {
        $(#[doc = $first_doc:literal])+ $first:ident = $first_word:literal,
        $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)*
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            #[serde(rename = $first_word, alias = "")]
            $first,
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[Self::$first, $(Self::$variant,)*];

            /// The value as it is written.
            pub const fn as_str(self) -> &'static str {
                match self { Self::$first => $first_word, $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::scalar::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                let known = Self::ALL.iter().copied().find(|value| value.as_str() == word);
                known.ok_or_else(|| crate::scalar::UnknownWord::new(word, Self::ALL.iter().map(|value| value.as_str())))
            }
        }

        impl crate::schema::Schema for $name {
            fn schema() -> serde_json::Value {
                // The empty word is what a client of Longhorn sends for a field that it leaves alone.
                let mut words: Vec<&str> = Self::ALL.iter().map(|value| value.as_str()).collect();
                if !words.contains(&"") {
                    words.push("");
                }
                serde_json::json!({"type": "string", "enum": words})
            }
        }

        impl crate::scalar::Omit for $name {}
    };
}

/// A resource: its object, its place in the API, its columns. Without `of`, one of `longhorn.io` in a namespace.
macro_rules! resource {
    ($(#[doc = $doc:literal])+ $kind:ident: $plural:literal, short $short:literal { $($body:tt)* } columns $columns:expr) => {
        resource! {
            $(#[doc = $doc])+ $kind: $plural, short $short, of crate::GROUP, crate::VERSION, crate::API_VERSION,
            k8s_openapi::NamespaceResourceScope { $($body)* } columns $columns
        }
    };
    ($(#[doc = $doc:literal])+ $kind:ident: $plural:literal, short $short:literal,
        of $group:expr, $version:expr, $api_version:expr, $scope:ty {
        $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty $(= $wire:literal)?,)*
    } columns $columns:expr) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $kind {
            /// Standard object metadata.
            #[serde(deserialize_with = "crate::metadata::without_managers")]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $(
                $(#[doc = $field_doc])+
                #[serde($(rename = $wire,)? deserialize_with = "crate::scalar::null_is_default")]
                pub $field: $type,
            )*
        }

        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let fields = 3 + [$(stringify!($field)),*].len();
                let mut object = serializer.serialize_struct(stringify!($kind), fields)?;
                object.serialize_field("apiVersion", $api_version)?;
                object.serialize_field("kind", stringify!($kind))?;
                object.serialize_field("metadata", &self.metadata)?;
                $(object.serialize_field([$($wire,)? stringify!($field)][0], &self.$field)?;)*
                object.end()
            }
        }

        impl crate::definitions::Defined for $kind {
            const SHORT_NAME: &'static str = $short;
            const SCOPE: &'static str = <$scope as crate::definitions::Scoped>::WORD;
            const COLUMNS: &'static [crate::definitions::Column] = $columns;

            fn description() -> &'static str {
                concat!($($doc),+).trim_start()
            }

            fn fields() -> Vec<(&'static str, serde_json::Value)> {
                vec![$((
                    [$($wire,)? stringify!($field)][0],
                    crate::schema::described(<$type as crate::schema::Schema>::schema(), concat!($($field_doc),+)),
                )),*]
            }
        }
    };
}
