import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { forkNames } from '../../../src/domain/snapshots/fork.ts'
import { renderManifest, type ManifestFacts } from '../../../src/domain/snapshots/manifest.ts'
import { isSnapshotName } from '../../../src/domain/snapshots/snapshot.ts'

const RECORDED: ManifestFacts = {
  completed_at: new Date('2026-11-22T08:00:00Z'),
  image_reference: 'library/alpine:3.20',
  image_digest: `sha256:${'1'.repeat(64)}`,
  sandbox_name: 'demo',
  disk_bytes: 4_294_967_296,
  sha256: null,
  labels: { team: 'ml' },
}

test('a manifest has the digest that the public client computes for it', () => {
  // The digest of the client's own test value: shared/contract/captured/v0.7.11/snapshot-reply-object.json.
  const digest = createHash('sha256').update(renderManifest(RECORDED)).digest('hex')
  assert.equal(digest, 'beb43d5854cceee853c14a599cb0235d7a559b817e3a84ad640f16f9bbc53223')
})

test('a manifest is canonical: no zeros at the end of a fraction, and labels in the order of their bytes', () => {
  const labels = { b: '1', '9': '2', '10': '3', é: '4', a: 'ü' }
  const text = renderManifest({ ...RECORDED, completed_at: new Date('2026-11-22T08:00:10.500Z'), labels })
  assert.ok(text.includes('"created_at":"2026-11-22T08:00:10.5Z"'), text)
  assert.ok(text.includes('"labels":{"10":"3","9":"2","a":"ü","b":"1","é":"4"}'), text)
  assert.doesNotThrow(() => JSON.parse(text))
})

test('a name of a snapshot is never one that a client takes for a path', () => {
  for (const name of ['nightly', 'a', 'v1.2_3-x', '0']) assert.ok(isSnapshotName(name), name)
  for (const name of ['', '.', '~x', 'a/b', 'a\\b', '-a', 'a b', 'x'.repeat(129)])
    assert.ok(!isSnapshotName(name), name)
})

test('copies are numbered if there is more than one', () => {
  assert.deepEqual(forkNames('a', 1), ['a'])
  assert.deepEqual(forkNames('a', 2), ['a-1', 'a-2'])
  assert.deepEqual(forkNames(null, 2), [null, null])
})
