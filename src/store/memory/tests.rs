//! Filters, sorts and updates in memory compared with those of a real server: random ones from a small grammar, on
//! random documents, must have the same results.

use futures::TryStreamExt;
use mongodb::{
    Collection,
    bson::{Bson, DateTime, Document, doc, oid::ObjectId},
    options::ReturnDocument,
};
use watchlock_proofs::Random;
use watchlock_testkit::shared;

use super::{
    documents::check_replacement,
    matching::{Filter, Sort},
    updating::Update,
};

const ROUNDS: u64 = 2;
const DOCUMENTS: i32 = 80;
const FILTERS: usize = 250;
const SORTS: usize = 40;
const UPDATES: usize = 400;

const PATHS: [&str; 7] = ["a", "b", "c", "a.b", "a.c", "b.a", "a.b.c"];

fn scalar(random: &mut Random) -> Bson {
    match random.below(16) {
        0 => Bson::Null,
        1 => Bson::Boolean(random.below(2) == 0),
        2 => Bson::Double(1.5),
        3 => Bson::Double(f64::NAN),
        4 => Bson::Double(2.0),
        5 => Bson::Int64(2),
        6 => Bson::Int64(i64::MAX),
        7 => Bson::Double(9_223_372_036_854_775_807.0),
        8 => Bson::DateTime(DateTime::from_millis(1)),
        9 => Bson::ObjectId(ObjectId::from_bytes([1; 12])),
        10 => Bson::String(random.pick(&["", "x", "é", "2"]).to_string()),
        11 => Bson::Int32(i32::MAX),
        _ => Bson::Int32(i32::try_from(random.below(4)).unwrap() - 1),
    }
}

fn value(random: &mut Random, depth: usize) -> Bson {
    match random.below(if depth == 0 { 4 } else { 8 }) {
        5 => Bson::Document(fields(random, depth - 1)),
        6 | 7 => {
            let count = random.below(4);
            Bson::Array((0..count).map(|_| value(random, depth - 1)).collect())
        }
        _ => scalar(random),
    }
}

fn fields(random: &mut Random, depth: usize) -> Document {
    let mut document = Document::new();
    for field in ["a", "b", "c"] {
        if random.below(2) == 0 {
            document.insert(field, value(random, depth));
        }
    }
    document
}

/// Returns a value that in half of all cases occurs in the documents.
fn operand(random: &mut Random, documents: &[Document]) -> Bson {
    if random.below(2) == 0 {
        return value(random, 2);
    }
    let document = random.pick(documents);
    let found = document.get(random.pick(&["a", "b", "c"])).cloned();
    match (found, random.below(2)) {
        (Some(Bson::Array(elements)), 0) if !elements.is_empty() => random.pick(&elements).clone(),
        (Some(Bson::Document(inner)), 0) if !inner.is_empty() => inner.values().next().cloned().unwrap(),
        (found, _) => found.unwrap_or(Bson::Null),
    }
}

fn test(random: &mut Random, documents: &[Document]) -> Document {
    let mut test = Document::new();
    for _ in 0..=random.below(2) {
        let operator = *random.pick(&["$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$exists"]);
        let value = match operator {
            "$in" => {
                let count = random.below(4);
                (0..count)
                    .map(|_| operand(random, documents))
                    .collect::<Vec<_>>()
                    .into()
            }
            "$exists" => Bson::Boolean(random.below(2) == 0),
            "$eq" => operand(random, documents),
            _ => scalar(random),
        };
        test.insert(operator, value);
    }
    test
}

fn filter(random: &mut Random, documents: &[Document], depth: usize) -> Document {
    let mut filter = Document::new();
    for _ in 0..=random.below(2) {
        match random.below(if depth == 0 { 6 } else { 8 }) {
            at @ 6.. => {
                let operator = ["$and", "$or"][usize::try_from(at - 6).unwrap()];
                let count = 1 + random.below(3);
                let parts: Vec<_> = (0..count).map(|_| self::filter(random, documents, depth - 1)).collect();
                filter.insert(operator, parts);
            }
            0..3 => {
                filter.insert(*random.pick(&PATHS), operand(random, documents));
            }
            _ => {
                let test = test(random, documents);
                filter.insert(*random.pick(&PATHS), test);
            }
        }
    }
    filter
}

fn update(random: &mut Random, documents: &[Document]) -> Document {
    let mut update = Document::new();
    for _ in 0..=random.below(3) {
        let operator = *random.pick(&["$set", "$unset", "$inc"]);
        let mut fields = Document::new();
        for _ in 0..=random.below(2) {
            let value = match operator {
                "$inc" if random.below(8) != 0 => loop {
                    let value = scalar(random);
                    if matches!(value, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_)) {
                        break value;
                    }
                },
                _ => operand(random, documents),
            };
            fields.insert(*random.pick(&PATHS), value);
        }
        update.insert(operator, fields);
    }
    update
}

/// Returns a text for comparing documents, as documents are equal whatever the order of their fields, and NaN equals
/// nothing.
fn text(document: &Document) -> String {
    Bson::from(document.clone()).to_string()
}

async fn collection(name: &str, documents: &[Document]) -> Collection<Document> {
    let client = shared::replica_set().await.client().await.unwrap();
    let collection = client.database(&shared::unique_name("memory")).collection(name);
    collection.insert_many(documents).await.unwrap();
    collection
}

fn documents(random: &mut Random) -> Vec<Document> {
    let document = |id| {
        let mut document = doc! { "_id": id };
        document.extend(fields(random, 3));
        document
    };
    (0..DOCUMENTS).map(document).collect()
}

#[tokio::test]
async fn the_same_documents_match_in_the_same_order() {
    for seed in 1..=ROUNDS {
        let random = &mut Random::new(seed);
        let documents = documents(random);
        let collection = collection("matched", &documents).await;
        let mut matched = 0;
        for _ in 0..FILTERS {
            let wanted = filter(random, &documents, 2);
            let found = collection.find(wanted.clone()).sort(doc! { "_id": 1 });
            let found = found.projection(doc! { "_id": 1 }).await.unwrap();
            let there: Vec<Document> = found.try_collect().await.unwrap();
            let read = Filter::read(&wanted).unwrap();
            let here: Vec<_> = documents.iter().filter(|document| read.matches(document)).collect();
            let here: Vec<_> = here.iter().map(|document| document.get("_id")).collect();
            let there: Vec<_> = there.iter().map(|document| document.get("_id")).collect();
            assert_eq!(here, there, "seed {seed}, filter {wanted}");
            matched += usize::from(!here.is_empty() && here.len() < documents.len());
        }
        assert!(matched > FILTERS / 5, "too few filters tell anything apart: {matched}");
        let mut ordered = 0;
        for _ in 0..SORTS {
            let direction = *random.pick(&[1, -1]);
            let by = doc! { *random.pick(&PATHS): direction, "_id": 1 };
            let sort = Sort::read(&by).unwrap();
            // Documents and arrays are not ordered here.
            let keyed = documents
                .iter()
                .filter_map(|document| Some((sort.key(document).ok()?, document)));
            let mut here: Vec<_> = keyed.collect();
            let ids: Vec<_> = here.iter().map(|(_, document)| document.get("_id").unwrap()).collect();
            let sorted = collection.find(doc! { "_id": { "$in": ids } }).sort(by.clone());
            let there: Vec<Document> = sorted.await.unwrap().try_collect().await.unwrap();
            here.sort_by(|(one, _), (other, _)| sort.compare(one, other));
            ordered += usize::from(here.len() > documents.len() / 3);
            let here: Vec<_> = here.iter().map(|(_, document)| text(document)).collect();
            let there: Vec<_> = there.iter().map(text).collect();
            assert_eq!(here, there, "seed {seed}, sort {by}");
        }
        assert!(ordered > SORTS / 3, "most documents have no order: {ordered}");
    }
}

#[tokio::test]
async fn updates_come_to_the_same() {
    for seed in 1..=ROUNDS {
        let random = &mut Random::new(seed);
        let mut documents = documents(random);
        let collection = collection("updated", &documents).await;
        let (mut applied, mut refused) = (0, 0);
        for _ in 0..UPDATES {
            let update = update(random, &documents);
            let at = usize::try_from(random.below(documents.len() as u64)).unwrap();
            let before = documents[at].clone();
            let updating = collection.find_one_and_update(doc! { "_id": before.get("_id").unwrap() }, update.clone());
            let there = updating.return_document(ReturnDocument::After).await;
            let here = Update::read(&update.clone().into()).and_then(|update| update.apply(&before));
            match (here, there) {
                (Ok(here), Ok(Some(there))) => {
                    assert_eq!(text(&here), text(&there), "seed {seed}, {update} of {before}");
                    documents[at] = here;
                    applied += 1;
                }
                (Err(_), Err(_)) => refused += 1,
                (here, there) => panic!("seed {seed}, {update} of {before}: {here:?} here, {there:?} there"),
            }
        }
        assert!(
            applied > UPDATES / 5 && refused > 0,
            "{applied} applied, {refused} refused"
        );
    }
}

/// A server refuses the same replacements.
#[tokio::test]
async fn what_is_no_replacement_to_a_server_is_refused() {
    let client = mongodb::Client::with_uri_str(shared::replica_set().await.uri())
        .await
        .unwrap();
    let database = client.database(&shared::unique_name("watchlock_bounds"));
    let collection: Collection<Document> = database.collection("documents");
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    for replacement in [doc! { "$a": 1 }, doc! { "a": 1, "$b": 1 }, doc! { "a": { "b": 1 } }] {
        assert_eq!(
            check_replacement(&replacement).is_ok(),
            collection.replace_one(doc! { "_id": 1 }, &replacement).await.is_ok(),
            "{replacement}"
        );
    }
    assert!(collection.update_many(doc! {}, doc! {}).await.is_err());
    database.drop().await.unwrap();
}
