import assert from 'node:assert/strict'
import { test } from 'node:test'
import { choosePlatform, parseImageConfigDocument, parseManifest } from '../../../../src/worker/images/manifest.ts'
import { parseChallenge } from '../../../../src/worker/images/registry/registry-auth.ts'
import { costOfFourfold } from '../../../support/processor-time.ts'

const DIGEST = `sha256:${'0'.repeat(64)}`
const OTHER = `sha256:${'1'.repeat(64)}`
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value))

test('a challenge is parsed in any case and order, and a token is preferred to the password', () => {
  const bearer = { scheme: 'bearer', realm: 'https://auth.example/token', service: 'registry' }
  assert.deepEqual(parseChallenge('Bearer realm="https://auth.example/token",service="registry",scope="x"'), bearer)
  assert.deepEqual(
    parseChallenge('Basic realm="r", bearer service="registry", Realm="https://auth.example/token"'),
    bearer,
  )
  assert.deepEqual(parseChallenge('basic realm="r"'), { scheme: 'basic' })
  for (const none of ['', 'Negotiate', 'Bearer scope="x"', 'xbasic realm="r"'])
    assert.equal(parseChallenge(none), null, none)
})

test('the time to parse a challenge grows with its length alone', () => {
  const cost = costOfFourfold(4_000, (size) => parseChallenge(`Bearer realm="r",${'a'.repeat(size)}`))
  assert.ok(cost < 8, `four times the length takes ${cost.toFixed(1)} times as long`)
})

test('a document that is not a manifest, or is manifest and index at once, is refused', () => {
  const both = { manifests: [], config: { digest: DIGEST, size: 1 }, layers: [] }
  const upward = { config: { digest: 'sha256:../../etc', size: 1 }, layers: [] }
  for (const value of [{}, [], null, both, upward, { schemaVersion: 1, fsLayers: [] }]) {
    assert.throws(() => parseManifest(json(value), 'x'), { reason: 'image' })
  }
  assert.throws(() => parseManifest(Buffer.from('<html>'), 'x'), { reason: 'image' })
})

test('the manifest for this machine is chosen, and the error lists the platforms that exist', () => {
  const entry = (os: string, architecture: string, digest = DIGEST): object => ({
    digest,
    size: 1,
    platform: { os, architecture },
  })
  const parsed = parseManifest(
    json({ manifests: [entry('unknown', 'unknown'), entry('windows', 'amd64'), entry('linux', 'amd64', OTHER)] }),
    'x',
  )
  assert.ok(parsed.kind === 'index')
  assert.equal(choosePlatform(parsed.index, 'amd64', 'x').digest, OTHER)
  assert.throws(
    () => choosePlatform(parsed.index, 'arm64', 'x'),
    /no linux\/arm64 variant; it has: unknown\/unknown, windows\/amd64, linux\/amd64/,
  )
})

test('an image configuration with nulls or missing members counts as empty', () => {
  const nothing = { env: [], entrypoint: null, cmd: null, workdir: null, user: null }
  const rootfs = { type: 'layers', diff_ids: [DIGEST] }
  const nulls = {
    Env: null,
    Cmd: null,
    Entrypoint: [''],
    WorkingDir: '',
    User: '',
    Labels: null,
    ExposedPorts: { '80/tcp': {} },
  }
  for (const config of [undefined, null, {}, nulls]) {
    assert.deepEqual(
      parseImageConfigDocument(json({ os: 'linux', architecture: 'amd64', config, rootfs }), 'amd64', 'x').config,
      nothing,
    )
  }
})
