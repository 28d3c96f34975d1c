import assert from 'node:assert/strict'
import { createPublicKey, generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer as createPlainServer, type Socket } from 'node:net'
import { createServer as createTlsServer } from 'node:tls'
import { networkInterfaces, tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before } from 'node:test'
import { ownFingerprint } from '../../src/cli/server/tls/tls-identity.ts'
import { formatJoinToken } from '../../src/domain/orgs/api-key.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeSelfSignedCertificate, publicKeyFingerprint } from '../../src/lib/self-signed-certificate.ts'
import { makeControlPlane } from '../../src/worker/agent/control-plane.ts'
import { JoinRefused, joinOnce } from '../../src/worker/agent/join.ts'
import { attack } from '../support/security-attack.ts'
import { spawnProgram } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

const FACTS = { target: 'workers', attacker: 'a machine on the network path', finding: 13 } as const
const PIN = ownFingerprint(Buffer.alloc(32, 7))
const TOKEN = formatJoinToken(systemRandom.bytes(32), PIN)
const ENDS_LIMIT_MS = 60_000

let folder: string
before(() => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-tls-'))
})
after(() => {
  rmSync(folder, { recursive: true })
})

/** A machine that answers in the control plane's place. It records what it reads, after any handshake. */
async function intercept(kind: 'tls' | 'plain', host: string) {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const day = 24 * 3_600_000
  const cert = makeSelfSignedCertificate({
    key: privateKey,
    names: [host],
    from: new Date(Date.parse('2026-01-01')),
    until: new Date(Date.parse('2026-01-01') + 3_650 * day),
    serial: systemRandom.bytes(15),
  })
  let read = ''
  let connections = 0
  const onConnection = (socket: Socket): void => {
    socket.setEncoding('latin1').on('error', () => socket.destroy())
    socket.on('data', (bytes) => {
      read += String(bytes)
    })
  }
  const key = privateKey.export({ type: 'pkcs8', format: 'pem' })
  const server = kind === 'tls' ? createTlsServer({ cert, key }, onConnection) : createPlainServer(onConnection)
  server.on('tlsClientError', () => undefined)
  server.on('connection', () => {
    connections += 1 // also those whose handshake the client ends
  })
  await new Promise<void>((resolve) => server.listen(0, host, resolve))
  const address = server.address()
  assert.ok(typeof address === 'object' && address !== null)
  return {
    url: `${kind === 'tls' ? 'https' : 'http'}://${host}:${String(address.port)}`,
    fingerprint: publicKeyFingerprint(createPublicKey(privateKey)),
    seen: () => ({ read, connections }),
    close: () => new Promise((resolve) => server.close(resolve)),
  }
}

/** Runs `sandyard worker` until it ends. */
async function runWorker(name: string, settings: Readonly<Record<string, string>>) {
  const child = spawnProgram(['worker'], {
    SANDYARD_DATA_DIR: join(folder, name),
    SANDYARD_DRIVER: 'simulated',
    ...settings,
  })
  assert.ok(child.stdout !== null && child.stderr !== null)
  const ended = waitUntil(() => child.exitCode !== null || child.signalCode !== null, ENDS_LIMIT_MS)
  const [, err] = await Promise.all([text(child.stdout), text(child.stderr), ended])
  return { code: child.exitCode, err }
}

attack('gets the join token of a worker by answering with a certificate of its own', FACTS, async () => {
  const impostor = await intercept('tls', '127.0.0.1')
  const { code, err } = await runWorker('impostor', { SANDYARD_JOIN: impostor.url, SANDYARD_JOIN_TOKEN: TOKEN })
  assert.notEqual(code, 0)
  assert.match(err, /certificate that the join token does not pin, so nothing was sent/)
  assert.ok(err.includes(impostor.fingerprint) && err.includes(PIN), err)
  assert.equal(impostor.seen().read, '')
  assert.ok(impostor.seen().connections > 0)
  const request = { protocol: 1, token: TOKEN, credential_sha256: 'a'.repeat(64), name: null, fallback_name: 'a' }
  await assert.rejects(joinOnce(impostor.url, request, AbortSignal.timeout(20_000)), JoinRefused)
  assert.equal(impostor.seen().read, '')
  await impostor.close()
  return {
    tries: 2,
    outcome: 'the worker ended with both fingerprints in its error, and sent no byte after the handshake',
  }
})

attack('gets the credential of a joined worker by answering its syncs and streams', FACTS, async () => {
  const impostor = await intercept('tls', '127.0.0.1')
  const controlPlane = makeControlPlane({ url: impostor.url, credential: 'secret-credential', pin: () => PIN })
  const signal = AbortSignal.timeout(20_000)
  const refused = /does not pin/
  await assert.rejects(controlPlane.sync({} as never, signal), refused)
  await assert.rejects(controlPlane.standBy(signal), refused)
  await assert.rejects(controlPlane.dial({ ticket: 'a' }, signal), refused)
  assert.deepEqual(impostor.seen(), { read: '', connections: 3 })
  await impostor.close()
  return { tries: 3, outcome: 'a sync, a stand-by connection and a ticket were each ended before a byte was sent' }
})

const [outside] = Object.values(networkInterfaces())
  .flatMap((all) => all ?? [])
  .filter(({ internal, family }) => !internal && family === 'IPv4')

attack(
  'reads the join token of a worker that joins by plain HTTP',
  { ...FACTS, skip: outside === undefined ? 'this machine has no address beyond loopback' : null },
  async () => {
    const listener = await intercept('plain', outside?.address ?? '')
    const joining = { SANDYARD_JOIN: listener.url, SANDYARD_JOIN_TOKEN: TOKEN }
    const { code, err } = await runWorker('plain', joining)
    assert.equal(code, 2)
    assert.match(err, /is not encrypted.*--insecure/)
    assert.deepEqual(listener.seen(), { read: '', connections: 0 })
    await listener.close()
    return { tries: 1, outcome: 'the worker refused the URL and opened no connection' }
  },
)
