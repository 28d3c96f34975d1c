import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { request, type IncomingHttpHeaders } from 'node:http'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { freePort } from '../support/free-port.ts'
import { guestTool, storeTool } from '../support/guest-tools.ts'
import { whyNoOpenSsh } from '../support/openssh.ts'
import { startReplicaWorld, type ReplicaProcess, type ReplicaWorld } from '../support/replica-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { makeSshClient, type SshClient } from '../support/ssh-client.ts'
import { waitUntil } from '../support/wait.ts'

// SSH and previews by two server processes, one of which is killed.

const LIMIT_MS = 45_000
const APP = `require('node:http').createServer((req, res) => {
  if (req.url !== '/open') return res.end('path ' + req.url)
  res.writeHead(200); res.write('first '); }).listen(3000)`

describe('the doors of two server processes', { skip: whyNoServer() || whyNoOpenSsh() }, () => {
  let world: ReplicaWorld
  let ports: readonly number[]
  let ssh: SshClient
  let sandboxId: string
  let slug: string

  before(async () => {
    ports = [await freePort(), await freePort()]
    world = await startReplicaWorld(
      2,
      ports.map((port) => ({ SANDYARD_SSH_PORT: String(port) })),
    )
    ssh = await makeSshClient(ports[0] ?? 0)
    await mustCall(one(0), 'add_ssh_key', { body: { name: 'laptop', public_key: ssh.publicKey } })
    const tool = await storeTool(one(0), 'node')
    const cmd = ['sh', '-c', `cat >/root/app.js <<'EOF'\n${APP}\nEOF\n${guestTool('node')} /root/app.js`]
    const body = { name: 'web', image: DEMO_IMAGE, runtime: { entrypoint: [], cmd }, mounts: [tool], resources: { memory_mib: 512 } } // prettier-ignore
    const made = await mustCall(one(0), 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
    sandboxId = made.id
    slug = (await mustCall(one(0), 'get_sandbox', { params: { sandbox_id: made.id } })).slug
  })
  after(async () => {
    ssh.remove()
    assert.deepEqual(await world.close(), [])
  })

  function one(index: number): ReplicaProcess {
    const replica = world.replicas[index]
    assert.ok(replica)
    return replica
  }
  /** The options by which `ssh` uses a server process under the same name, so that another host key would be refused. */
  const by = (index: number): readonly string[] => ['-o', `Port=${String(ports[index])}`, '-o', 'HostKeyAlias=sandyard']

  type Reply = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: string }

  async function get(index: number, path: string, headers: Record<string, string> = {}): Promise<Reply> {
    const { port } = new URL(one(index).url)
    const host = `3000-${slug}.localhost:${port}`
    const asked = request({ host: '127.0.0.1', port: Number(port), path, headers: { ...headers, host } })
    asked.end()
    const [reply] = await once(asked, 'response')
    return { status: reply.statusCode, headers: reply.headers, body: await text(reply) }
  }

  test('both have the same host key, and a command runs by either', async () => {
    for (const index of [0, 1]) {
      const { code, stdout, stderr } = await ssh.ssh('web.default', ['echo in'], { options: by(index) })
      assert.deepEqual([code, stdout], [0, 'in\n'], stderr)
    }
    assert.equal(readFileSync(join(ssh.dir, 'known'), 'utf8').trim().split('\n').length, 1)
  })

  test('a link that one has made opens the port by the other, and is revoked there too', async () => {
    const headers = { authorization: `Bearer ${one(1).key}` }
    await waitUntil(async () => (await get(1, '/up', headers)).status === 200, LIMIT_MS)
    const made = await mustCall(one(0), 'create_preview', {
      params: { sandbox_id: sandboxId },
      body: { port: 3000, expires_at: '2035-01-01T00:00:00Z' },
    })
    const secret = /sandyard_preview=(syp_[^&]+)/.exec(made.url)?.[1] ?? ''
    for (const index of [0, 1]) {
      const first = await get(index, `/page?sandyard_preview=${secret}`)
      assert.equal(first.status, 302)
      const cookie = String(first.headers['set-cookie']?.[0]).split(';')[0] ?? ''
      assert.equal((await get(index, '/page', { cookie })).body, 'path /page')
    }
    await mustCall(one(1), 'revoke_preview', { params: { sandbox_id: sandboxId, preview_id: made.id } })
    await waitUntil(
      async () => (await get(0, '/page', { cookie: `sandyard_preview=${secret}` })).status === 401,
      LIMIT_MS,
    )
  })

  test('when one is killed, its connections end, and the client goes on by the other', async () => {
    const child = ssh.start([...by(0), '-T', 'web.default@sandyard', 'echo up; sleep 600'])
    assert.ok(child.stdout !== null)
    assert.equal(String((await once(child.stdout, 'data'))[0]), 'up\n')
    const headers = { authorization: `Bearer ${one(0).key}` }
    const cut = get(0, '/open', headers).then(
      () => 'ended',
      () => 'cut',
    )
    const ended = once(child, 'exit')
    await one(0).kill9()
    assert.deepEqual([(await ended)[0], await cut], [255, 'cut'])
    const again = await ssh.ssh('web.default', ['echo again'], { options: by(1) })
    assert.deepEqual([again.code, again.stdout], [0, 'again\n'], again.stderr)
    assert.equal((await get(1, '/still', headers)).body, 'path /still')
    // What ran for the lost connection ends too.
    await waitUntil(
      async () =>
        (await ssh.ssh('web.default', ['pgrep -f "sleep 60[0]" | wc -l'], { options: by(1) })).stdout === '0\n',
      LIMIT_MS,
    )
  })
})
