//! Identity of the driver's clients: whether two handles belong to the same one.

use mongodb::Client;

/// Returns a text by which clones of one driver client are recognised, for as long as one of them lives; `None` if this
/// release of the driver does not show it. In that case each handle counts as a separate client, which costs a change
/// stream each and does no harm.
///
/// The driver compares its clients by address and has no way to ask for it. Its description shows one: the address of
/// the tracker of the client's own tasks, which no other client has. Nothing else of the description is kept.
pub(crate) fn identity(client: &Client) -> Option<String> {
    let description = format!("{client:?}");
    let (_, owner) = description.rsplit_once("TopologyShutdown {")?;
    let (_, address) = owner.split_once("inner: 0x")?;
    let digits = address.split(|letter: char| !letter.is_ascii_hexdigit()).next()?;
    Some(digits.to_owned()).filter(|digits| !digits.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clones_are_one_client_and_others_are_not() {
        let client = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let other = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let known = identity(&client);
        assert!(
            known.is_some(),
            "this release of the driver shows no identity: {client:?}"
        );
        let handle = client.database("a").collection::<mongodb::bson::Document>("b");
        assert_eq!(identity(handle.client()), known);
        assert_ne!(identity(&other), known);
    }
}
