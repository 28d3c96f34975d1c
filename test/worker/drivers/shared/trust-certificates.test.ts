import assert from 'node:assert/strict'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, test } from 'node:test'
import type { RootTree } from '../../../../src/worker/drivers/shared/root-tree.ts'
import { trustCertificates } from '../../../../src/worker/drivers/shared/trust-certificates.ts'

const DEBIAN = '/etc/ssl/certs/ca-certificates.crt'
const FEDORA = '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem'
const OURS = '-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n'
let root: string
let tree: RootTree

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'trust-'))
  tree = { root, owner: process.getuid?.() ?? 0, isFresh: true }
})
afterEach(() => {
  rmSync(root, { recursive: true })
})

test('certificates are added to the bundle of the image once, and newer ones replace them', async () => {
  put(DEBIAN, 'theirs, without a line break')
  await trustCertificates(tree, 'older')
  await trustCertificates({ ...tree, isFresh: false }, OURS)
  const bundle = read(DEBIAN)
  assert.ok(bundle.startsWith('theirs, without a line break\n') && bundle.includes(OURS) && !bundle.includes('older'))
  assert.equal(read('/.msb/tls/bundle.pem'), bundle)
  assert.equal(read('/.msb/tls/ca.pem'), OURS)
})

test('a link between bundles stays a link, and its target gets the certificates', async () => {
  put(FEDORA, 'theirs\n')
  mkdirSync(join(root, '/etc/pki/tls/certs'), { recursive: true })
  symlinkSync(FEDORA, join(root, '/etc/pki/tls/certs/ca-bundle.crt'))
  await trustCertificates(tree, OURS)
  assert.ok(lstatSync(join(root, '/etc/pki/tls/certs/ca-bundle.crt')).isSymbolicLink())
  assert.equal(read(FEDORA).split(OURS).length, 2)
  assert.ok(!existsSync(join(root, DEBIAN)))
})

test('an image without a bundle gets one', async () => {
  await trustCertificates(tree, OURS)
  assert.ok(read(DEBIAN).includes(OURS))
  assert.ok(read('/.msb/tls/bundle.pem').includes(OURS))
})

test('no link of an image leads to a file of the machine', async () => {
  const victim = `${root}-victim`
  writeFileSync(victim, 'of the machine')
  mkdirSync(join(root, '/etc/ssl/certs'), { recursive: true })
  symlinkSync(victim, join(root, DEBIAN))
  await trustCertificates(tree, OURS)
  assert.equal(readFileSync(victim, 'utf8'), 'of the machine')
  rmSync(victim)
})

test('a bundle that is too large, and a folder in its place, fail with the path', async () => {
  put(DEBIAN, '')
  truncateSync(join(root, DEBIAN), 5 * 1024 * 1024)
  await assert.rejects(trustCertificates(tree, OURS), { message: `'${DEBIAN}' is larger than 4 MiB` })
  rmSync(join(root, DEBIAN))
  mkdirSync(join(root, DEBIAN))
  await assert.rejects(trustCertificates(tree, OURS), { message: `'${DEBIAN}' is a folder` })
})

function put(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true })
  writeFileSync(join(root, path), text)
}

function read(path: string): string {
  return readFileSync(join(root, path), 'utf8')
}
