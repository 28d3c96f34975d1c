import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { call, mustCall } from './api.ts'
import { guestTool, storeTool } from './guest-tools.ts'
import { DEMO_IMAGE } from './sdk.ts'
import { startServer, type RealServer } from './server.ts'
import { waitUntil } from './wait.ts'

// Ports of real sandboxes on the machine of their worker, as a client of the API asks for them.

/** Answers each connection with its first line. */
const PROGRAM = `socket(S, 2, 1, 6); setsockopt(S, 1, 2, pack("i", 1)); bind(S, pack("S n x4 x8", 2, 8000)) or die $!; listen(S, 5);
  while (accept(C, S)) { $line = <C>; syswrite(C, "hello $line"); close C }`

/** Tests the published ports of the sandboxes of a driver. The caller is in a network namespace of its own. */
export function testPublishedPorts(driver: 'oci' | 'microsandbox', skip: string | false): void {
  describe(`published ports of real sandboxes: ${driver}`, { skip }, () => {
    let server: RealServer
    let tool: object

    before(async () => {
      server = await startServer({ SANDYARD_DRIVER: driver, SANDYARD_PUBLISH: '127.0.0.1:20000-20999' })
      tool = await storeTool(server, 'perl')
    })
    after(() => server.close())

    test('a port that another sandbox publishes is refused by name until that one stops', async () => {
      const first = await create('first', [{ guest_port: 8_000, host_port: 20_500 }])
      assert.match(await refusal([{ guest_port: 1 }, { guest_port: 80, host_port: 20_500 }]), /^network\.ports\[1\]\.host_port: .*20500, which another sandbox publishes/) // prettier-ignore
      await stop(first)
      const second = await create('second', [{ guest_port: 8_000, host_port: 20_500 }])
      await waitUntil(async () => (await ask(20_500)) === 'hello world\n')
      await stop(second)
    })

    test('a port that no worker may publish, and one that the policy keeps closed, are refused by name', async () => {
      const offered = /what workers publish \(SANDYARD_PUBLISH\): 127\.0\.0\.1:20000-20999/
      assert.match(await refusal([{ guest_port: 80, host_port: 22 }]), /^network\.ports\[0\]\.host_port: .*22.*/)
      assert.match(await refusal([{ guest_port: 80, host_port: 22 }]), offered)
      assert.match(await refusal([{ guest_port: 80, host_bind: '0.0.0.0' }]), /^network\.ports\[0\]\.host_bind: .*0\.0\.0\.0/) // prettier-ignore
      assert.match(await refusal([{ guest_port: 80 }], null), /^network\.ports\[0\]\.guest_port: .*tcp port 80, which network\.policy keeps closed/) // prettier-ignore
    })

    test('a client of the machine reaches a server in the sandbox, also after the worker was killed', async () => {
      const id = await create('web', [{ guest_port: 8_000 }])
      const port = await portOf(id)
      assert.ok(port >= 20_000 && port <= 20_999, String(port))
      await waitUntil(async () => (await ask(port)) === 'hello world\n')
      await server.kill9()
      await server.start()
      await waitUntil(async () => (await ask(port)) === 'hello world\n')
      assert.equal(await portOf(id), port)
      await stop(id)
      assert.equal(await ask(port), 'ECONNREFUSED')
    })

    async function create(name: string, ports: readonly object[]): Promise<string> {
      const runtime = { entrypoint: [], cmd: ['sh', '-c', `${guestTool('perl')} -e '${PROGRAM}'`] }
      const network = { ports, policy: { default_ingress: 'allow' } }
      const body = { name, image: DEMO_IMAGE, runtime, network, mounts: [tool] }
      const { id } = await mustCall(server, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
      return id
    }

    async function stop(id: string): Promise<void> {
      await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
      await waitUntil(async () => {
        const { status } = await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
        return status !== 'stopping'
      })
    }

    async function portOf(id: string): Promise<number> {
      const { spec } = await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
      return spec?.network.ports[0]?.host_port ?? 0
    }

    async function refusal(ports: readonly object[], policy: object | null = { default_ingress: 'allow' }) {
      const reply = await call(server, 'create_sandbox', { body: { image: DEMO_IMAGE, network: { ports, policy } } })
      assert.ok(reply.isRefusal && reply.status === 400, JSON.stringify(reply.body))
      const { field, seen, accepted } = reply.body.error.details as Record<string, string>
      return `${String(field)}: seen ${String(seen)}; accepted ${String(accepted)}`
    }
  })
}

/** The answer of the server behind a port, or the code of the failure. */
async function ask(port: number): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port, allowHalfOpen: true })
  socket.end('world\n')
  try {
    return await text(socket)
  } catch (error) {
    return error instanceof Error && 'code' in error ? String(error.code) : String(error)
  }
}
