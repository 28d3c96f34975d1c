import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test, type TestContext } from 'node:test'
import { connect, type TLSSocket } from 'node:tls'
import { pinOfJoinToken } from '../../src/domain/orgs/api-key.ts'
import { publicKeyFingerprint } from '../../src/lib/self-signed-certificate.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { makeCertificate } from '../support/certificates.ts'
import { runMsb } from '../support/msb.ts'
import { makeProgram, runProgram } from '../support/program.ts'
import { whyNoProxy } from '../support/proxies.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'
import { PROGRAM } from '../support/program-file.ts'

const KEY = 'test-key-of-the-first-organization'
const READY = /ready on (https?:\S+)/
const LIMIT_MS = 30_000

let root: string
before(() => {
  root = mkdtempSync(join(tmpdir(), 'sandyard-tls-e2e-'))
  chmodSync(root, 0o711)
})
after(() => {
  rmSync(root, { recursive: true })
})

function prepare(t: TestContext, name: string, settings: Readonly<Record<string, string>>) {
  const dataDir = join(root, name)
  const program = makeProgram(
    ['up'],
    {
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_API_KEY: KEY,
      SANDYARD_PORT: '0',
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_SHUTDOWN: 'stop',
      SANDYARD_LOG_LEVEL: 'info',
      ...settings,
    },
    READY,
  )
  t.after(() => program.stop())
  const home = join(root, `${name}-home`)
  mkdirSync(home)
  const clientEnv = (url: string, caFile: string) => ({
    clientEnv: { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: KEY, HOME: home, SSL_CERT_FILE: caFile },
  })
  return { program, dataDir, clientEnv }
}

/** Opens a TLS connection and resolves with it, and with the certificate of its server. */
async function dial(port: number, caFile: string): Promise<{ socket: TLSSocket; certificate: X509Certificate }> {
  const socket = connect({ host: '127.0.0.1', port, servername: 'localhost', ca: readFileSync(caFile) })
  await once(socket, 'secureConnect')
  const certificate = socket.getPeerX509Certificate()
  assert.ok(certificate)
  return { socket, certificate }
}

/** Sends a request on an open connection, and resolves with the first line of the answer. */
async function ask(socket: TLSSocket): Promise<string> {
  socket.write('GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n')
  const [head] = await once(socket, 'data')
  return String(head).split('\r\n', 1)[0] ?? ''
}

describe('a server beyond loopback', { skip: whyNoServer() }, () => {
  test('makes a certificate itself; its clients, its own worker and a worker with a join token all reach it encrypted', async (t) => {
    const settings = { SANDYARD_HOST: '0.0.0.0', SANDYARD_DRIVER: 'oci', SANDYARD_READY_AHEAD: '0' }
    const { program, dataDir, clientEnv } = prepare(t, 'own', settings)
    const [, url = ''] = await program.start()
    const certFile = join(dataDir, 'tls-certificate.pem')
    const port = Number(new URL(url).port)
    assert.equal(url, `https://127.0.0.1:${String(port)}`)
    assert.equal(statSync(join(dataDir, 'sealing.key')).mode & 0o777, 0o600)

    const { socket, certificate } = await dial(port, certFile)
    assert.equal(await ask(socket), 'HTTP/1.1 200 OK')
    socket.destroy()
    const fingerprint = publicKeyFingerprint(certificate.publicKey)
    assert.ok(program.output().includes(fingerprint), program.output())

    const plain = get({ host: '127.0.0.1', port, path: '/healthz' })
    const [failure] = await once(plain, 'error')
    assert.match(String(failure), /ECONNRESET|socket hang up/)

    const client = clientEnv(url, certFile)
    const run = await runMsb(client, ['run', '--name', 'over-tls', DEMO_IMAGE, '--', 'echo', 'encrypted'])
    assert.deepEqual([run.code, run.stdout.trim()], [0, 'encrypted'], run.stderr)
    assert.notEqual((await runMsb(clientEnv(url, '/dev/null'), ['ls'])).code, 0)

    // A server that listens on all addresses names no URL in the database; the command finds it on this machine.
    for (const named of [
      { args: ['--url', url], more: {} },
      { args: [], more: { SANDYARD_PORT: String(port) } },
    ]) {
      const logs = await runProgram(['logs', 'over-tls', ...named.args], { SANDYARD_DATA_DIR: dataDir, ...named.more })
      assert.equal(logs.code, 0, logs.output)
    }

    const env = { ...process.env, SANDYARD_DATA_DIR: dataDir }
    const made = await runCommand(process.execPath, [PROGRAM, 'worker', 'token'], { timeoutMs: LIMIT_MS, env })
    const token = made.stdout.trim()
    assert.equal(pinOfJoinToken(token), fingerprint)
    const worker = makeProgram(
      ['worker'],
      {
        SANDYARD_DATA_DIR: join(root, 'worker'),
        SANDYARD_DRIVER: 'simulated',
        SANDYARD_JOIN: url,
        SANDYARD_JOIN_TOKEN: token,
        SANDYARD_WORKER_NAME: 'pinned',
      },
      /ready: the control plane may place sandboxes here/,
    )
    t.after(() => worker.stop())
    await worker.start()
    const stored: unknown = JSON.parse(readFileSync(join(root, 'worker', 'worker.json'), 'utf8'))
    assert.equal(Object(stored).joined.pin, fingerprint)

    // A restart keeps the key and the certificate, of which clients have copies.
    await program.stop()
    const before = worker.output().length
    const again = makeProgram(['up'], { ...settings, SANDYARD_DATA_DIR: dataDir, SANDYARD_PORT: String(port) }, READY)
    t.after(() => again.stop())
    await again.start()
    await waitUntil(() => worker.output().slice(before).includes('answers again'), LIMIT_MS)
    assert.equal(new X509Certificate(readFileSync(certFile)).serialNumber, certificate.serialNumber)
  })

  test('several processes have one certificate, which clients that trust its file verify, also after it was replaced', async (t) => {
    const { program, dataDir } = prepare(t, 'many', { SANDYARD_HOST: '0.0.0.0', SANDYARD_PROCESSES: '3' })
    const [, url = ''] = await program.start()
    const certFile = join(dataDir, 'tls-certificate.pem')
    const serials = async (): Promise<readonly string[]> => {
      const dialled = await Promise.all(Array.from({ length: 20 }, () => dial(Number(new URL(url).port), certFile)))
      for (const { socket } of dialled) socket.destroy()
      return [...new Set(dialled.map(({ certificate }) => certificate.serialNumber))]
    }
    const [first, ...others] = await serials()
    assert.deepEqual(others, [])
    rmSync(certFile)
    await waitUntil(async () => {
      const now = await serials().catch(() => [])
      return now.length === 1 && now[0] !== first
    }, LIMIT_MS)
  })

  test('speaks plain HTTP only with --insecure, and warns', async (t) => {
    const { program } = prepare(t, 'insecure', { SANDYARD_HOST: '0.0.0.0', SANDYARD_INSECURE: 'true' })
    const [, url = ''] = await program.start()
    assert.match(url, /^http:/)
    assert.match(program.output(), /WARNING: the API listens on 0\.0\.0\.0 WITHOUT ENCRYPTION/)
    assert.equal((await fetch(`${url}/healthz`)).status, 200)
  })
})

test(
  'a given certificate is used, and replaced while the server runs; open connections live on, and a broken pair is not taken',
  { skip: whyNoServer() || whyNoProxy('nginx') },
  async (t) => {
    const [first, second] = ['one', 'two'].map((name) => join(root, name))
    assert.ok(first !== undefined && second !== undefined)
    for (const folder of [first, second]) mkdirSync(folder)
    const [one, two] = [await makeCertificate(first), await makeCertificate(second)]
    const [cert, key] = [join(root, 'cert.pem'), join(root, 'key.pem')]
    const install = (from: { readonly certFile: string; readonly keyFile: string }): void => {
      copyFileSync(from.certFile, cert)
      copyFileSync(from.keyFile, key)
    }
    install(one)
    const { program, clientEnv } = prepare(t, 'given', { SANDYARD_TLS_CERT: cert, SANDYARD_TLS_KEY: key })
    const [, url = ''] = await program.start()
    const port = Number(new URL(url).port)
    const named = `https://localhost:${String(port)}`
    const list = await runMsb(clientEnv(named, one.caFile), ['ls'])
    assert.equal(list.code, 0, list.stderr)
    const open = await dial(port, one.caFile)
    assert.equal(await ask(open.socket), 'HTTP/1.1 200 OK')

    writeFileSync(cert, 'broken')
    await waitUntil(() => program.output().includes('the previous one stays'), LIMIT_MS)
    const kept = await dial(port, one.caFile)
    assert.equal(kept.certificate.fingerprint256, open.certificate.fingerprint256)
    kept.socket.destroy()

    install(two)
    await waitUntil(() => program.output().includes('the TLS certificate was reloaded'), LIMIT_MS)
    const renewed = await dial(port, two.caFile)
    assert.notEqual(renewed.certificate.fingerprint256, open.certificate.fingerprint256)
    renewed.socket.destroy()
    assert.equal(await ask(open.socket), 'HTTP/1.1 200 OK')
    open.socket.destroy()
    await assert.rejects(dial(port, one.caFile))
  },
)

test(
  'settings that contradict each other, or files that are no pair, stop the start by name',
  { skip: whyNoServer() },
  async () => {
    const start = async (...flags: readonly string[]): Promise<string> => {
      const program = makeProgram(['up', '--port', '0', ...flags], { SANDYARD_DATA_DIR: join(root, 'never') }, READY)
      await assert.rejects(program.start())
      return program.output()
    }
    const missing = join(root, 'missing.pem')
    assert.match(await start('--tls-cert', missing), /SANDYARD_TLS_CERT and SANDYARD_TLS_KEY belong together/)
    assert.match(
      await start('--tls-cert', missing, '--tls-key', missing),
      /the TLS certificate .*missing\.pem can't be read/,
    )
    assert.match(await start('--tls-cert', missing, '--tls-key', missing, '--insecure'), /exclude each other/)
  },
)
