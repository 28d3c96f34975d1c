import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { mustCall } from '../support/api.ts'
import { freePort } from '../support/free-port.ts'
import { whyNoOpenSsh } from '../support/openssh.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeSshClient, type SshClient } from '../support/ssh-client.ts'

// Certificates of an authority of an organization, made by OpenSSH's own ssh-keygen.

const LIMIT_MS = 15_000
const REFUSED = /Permission denied \(publickey\)/

describe('SSH certificates', { skip: whyNoServer() || whyNoOpenSsh() }, () => {
  let server: RealServer
  let port: number
  let ssh: SshClient
  let authorityId: string

  before(async () => {
    port = await freePort()
    server = await startServer({ SANDYARD_SSH_PORT: String(port) })
    ssh = await makeSshClient(port)
    await keygen('-t', 'ed25519', '-f', 'ca')
    await keygen('-t', 'ed25519', '-f', 'stranger')
    await keygen('-t', 'ed25519', '-f', 'plain')
    const add = async (name: string, public_key: string) => (await mustCall(server, 'add_ssh_key', { body: { name, public_key } })).id // prettier-ignore
    authorityId = await add('our authority', `cert-authority ${read('ca.pub')}`)
    await add('plain', read('plain.pub'))
    for (const name of ['one', 'two'])
      await mustCall(server, 'create_sandbox', {
        query: { start: 'true', wait_for: 'running' },
        body: { name, image: DEMO_IMAGE },
      })
  })
  after(async () => {
    ssh.remove()
    await server.close()
  })

  const read = (name: string): string => readFileSync(join(ssh.dir, name), 'utf8').trim()
  const keygen = (...args: readonly string[]) =>
    runCommand('ssh-keygen', ['-q', ...(args.includes('-s') ? [] : ['-N', '']), ...args], { timeoutMs: LIMIT_MS, cwd: ssh.dir }) // prettier-ignore
  /** Certifies the key of the client, which has no other right. */
  async function certify(...args: readonly string[]): Promise<void> {
    rmSync(join(ssh.dir, 'key-cert.pub'), { force: true })
    await keygen('-s', 'ca', '-I', 'alice@example.com', ...args, 'key.pub')
  }
  const enter = (user: string, options: readonly string[] = []) => ssh.ssh(user, ['echo in'], { options })
  async function assertRefused(user: string, why: string): Promise<void> {
    const { code, stderr } = await enter(user)
    assert.equal(code, 255, why)
    assert.match(stderr, REFUSED, why)
  }

  test('a principal names the organization or one sandbox, and nothing else opens it', async () => {
    await assertRefused('one.default', 'without a certificate')
    await certify('-n', 'default')
    for (const user of ['one.default', 'two.default']) assert.equal((await enter(user)).stdout, 'in\n')
    await certify('-n', 'somebody,one.default')
    const { slug } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'one' } })
    for (const user of ['one.default', slug]) assert.equal((await enter(user)).stdout, 'in\n')
    await assertRefused('two.default', 'another sandbox')
    await certify('-n', slug)
    assert.equal((await enter('one.default')).stdout, 'in\n')
    await certify('-n', 'root')
    await assertRefused('one.default', 'another principal')
    await certify()
    await assertRefused('one.default', 'no principals')
  })

  test('the event names the certificate and its authority', async () => {
    await certify('-n', 'default')
    await enter('one.default')
    const { data } = await mustCall(server, 'list_events', { query: { event_type: 'sandbox_channel_opened' } })
    const actor = data[0]?.actor
    assert.equal(actor?.kind, 'ssh_key')
    assert.deepEqual([actor.key_id, actor.label], [authorityId, 'alice@example.com (certificate of our authority)'])
  })

  test('a certificate outside its time, of another kind, or with a condition that is not met or not known is refused', async () => {
    const cases: readonly (readonly [string, readonly string[]])[] = [
      ['expired', ['-n', 'default', '-V', '-2h:-1h']],
      ['not yet valid', ['-n', 'default', '-V', '+1h:+2h']],
      ['of a host', ['-n', 'default', '-h']],
      ['for another address', ['-n', 'default', '-O', 'source-address=10.0.0.0/8,2001:db8::/32']],
      ['with a forced command', ['-n', 'default', '-O', 'force-command=true']],
      ['with an unknown condition', ['-n', 'default', '-O', 'critical:own@example.com=1']],
    ]
    for (const [why, args] of cases) {
      await certify(...args)
      await assertRefused('one.default', why)
    }
    await certify(
      '-n',
      'default',
      '-V',
      '-1h:+1h',
      '-O',
      'source-address=127.0.0.0/8',
      '-O',
      'extension:own@example.com',
    )
    assert.equal((await enter('one.default')).stdout, 'in\n')
  })

  test('a certificate without permissions has commands and files alone', async () => {
    await certify('-n', 'default', '-O', 'clear')
    assert.equal((await enter('one.default')).stdout, 'in\n')
    const terminal = await ssh.ssh('one.default', ['test -t 0'], { options: ['-tt'] })
    assert.notEqual(terminal.code, 0)
    assert.match(
      (await ssh.ssh('one.default', [], { options: ['-W', '127.0.0.1:22'] })).stderr,
      /prohibited|refused|failed/i,
    )
    assert.match(
      (await ssh.ssh('one.default', ['sleep 5'], { options: ['-R', '0:127.0.0.1:1'] })).stderr,
      /forwarding failed/i,
    )
  })

  test('only the authority of the organization signs, and its own key opens nothing', async () => {
    for (const signer of ['stranger', 'plain']) {
      rmSync(join(ssh.dir, 'key-cert.pub'), { force: true })
      await keygen('-s', signer, '-I', 'mallory', '-n', 'default', 'key.pub')
      await assertRefused('one.default', `signed by ${signer}`)
    }
    rmSync(join(ssh.dir, 'key-cert.pub'), { force: true })
    const own = await ssh.ssh('one.default', ['true'], { options: ['-o', `IdentityFile=${join(ssh.dir, 'ca')}`] })
    assert.match(own.stderr, REFUSED)
  })

  test('keys and authorities of all types work', async () => {
    for (const type of ['rsa', 'ecdsa']) {
      const bits = type === 'rsa' ? '2048' : '384'
      await keygen('-t', type, '-b', bits, '-f', `ca-${type}`)
      await keygen('-t', type, '-b', bits, '-f', `own-${type}`)
      await mustCall(server, 'add_ssh_key', { body: { name: type, public_key: `cert-authority ${read(`ca-${type}.pub`)}` } }) // prettier-ignore
      await keygen('-s', `ca-${type}`, '-I', type, '-n', 'default', `own-${type}.pub`)
      const { code, stderr } = await ssh.ssh('one.default', ['true'], { options: ['-o', `IdentityFile=${join(ssh.dir, `own-${type}`)}`] }) // prettier-ignore
      assert.equal(code, 0, stderr)
    }
  })

  test('removing the authority ends the connections of its certificates', async () => {
    await certify('-n', 'default')
    const child = ssh.start(['-T', 'one.default@sandyard', 'echo up; sleep 60'])
    assert.ok(child.stdout !== null)
    await once(child.stdout, 'data')
    const ended = once(child, 'exit')
    await mustCall(server, 'remove_ssh_key', { params: { ssh_key_id: authorityId } })
    assert.deepEqual((await ended)[0], 255)
    await assertRefused('one.default', 'after its removal')
  })
})
