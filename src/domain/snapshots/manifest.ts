/**
 * The manifest of a snapshot, as the public clients check it: they write its members in this order and compare the hash with
 * the snapshot's digest.
 */
export type ManifestFacts = {
  readonly completed_at: Date
  readonly image_reference: string
  readonly image_digest: string
  readonly sandbox_name: string
  readonly disk_bytes: number
  /** The hash of the disk in hexadecimal digits, or null. */
  readonly sha256: string | null
  readonly labels: Readonly<Record<string, string>>
}

/** Renders the canonical text of a manifest. */
export function renderManifest(facts: ManifestFacts): string {
  const integrity = facts.sha256 === null ? null : { algorithm: 'sha256', digest: `sha256:${facts.sha256}` }
  const upper = { file: 'upper.ext4', size_bytes: facts.disk_bytes, integrity }
  const before = {
    schema: 1,
    artifact: 'snapshot',
    scope: 'disk',
    created_at: canonicalTime(facts.completed_at),
    parent: null,
    image: { ref: facts.image_reference, manifest_digest: facts.image_digest },
    source_sandbox: facts.sandbox_name,
    state: { kind: 'file', format: 'raw', fstype: 'ext4', upper },
  }
  return `${JSON.stringify(before).slice(0, -1)},"labels":${canonicalMap(facts.labels)},"extensions":{},"requires":[]}`
}

/** A time in UTC without zeros at the end of its fraction. */
function canonicalTime(time: Date): string {
  return time.toISOString().replace(/\.?0*Z$/, 'Z')
}

/** Renders a map with its keys in the order of their bytes. An object of JavaScript would move keys that are numbers to the front. */
function canonicalMap(map: Readonly<Record<string, string>>): string {
  const entries = Object.entries(map).toSorted(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
  return `{${entries.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join(',')}}`
}
