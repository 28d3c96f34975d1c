import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { NetworkPolicy } from 'microsandbox'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { call, mustCall } from './api.ts'
import { guestTool, storeTool } from './guest-tools.ts'
import { runMsb } from './msb.ts'
import { makeNamedWorld, type NamedHost } from './named-world.ts'
import { ip, OUTSIDE } from './network-world.ts'
import { DEMO_IMAGE, loadSdk } from './sdk.ts'
import { readProcesses } from './process-list.ts'
import { startServer, type RealServer } from './server.ts'
import { waitUntil } from './wait.ts'

// Rules by name, secrets and intercepted TLS of real sandboxes, with a resolver and web servers in another namespace.

const NAMES = {
  'good.example': { addresses: [OUTSIDE.public] },
  'other.example': { addresses: [OUTSIDE.otherPublic] },
  'deep.evil.example': { addresses: [OUTSIDE.otherPublic] },
  'third.example': { addresses: [OUTSIDE.otherPublic] },
}
/** A private address that is in no subnet of the worker. */
const PRIVATE = '10.77.0.5'
const VALUE = 'the-value-that-no-sandbox-sees'
const RUNNING = { start: 'true', wait_for: 'running' }

/** Tests the ways out of the sandboxes of a driver. The caller is in a network namespace of its own. */
export function testEgress(driver: 'oci' | 'microsandbox', skip: string | false): void {
  describe(`ways out of real sandboxes: ${driver}`, { skip }, () => {
    const cleanups = new AsyncDisposableStack()
    let server: RealServer
    let outside: NamedHost
    let upstreamCa: string

    before(async () => {
      const world = cleanups.use(await makeNamedWorld(NAMES))
      outside = world.outside
      upstreamCa = readFileSync(world.certificate.caFile, 'utf8')
      const folder = mkdtempSync(join(tmpdir(), 'sandyard-egress-'))
      cleanups.defer(() => {
        rmSync(folder, { recursive: true })
      })
      writeFileSync(join(folder, 'resolv.conf'), `nameserver ${OUTSIDE.resolver}\n`)
      await runCommand('mount', ['--bind', join(folder, 'resolv.conf'), '/etc/resolv.conf'], { timeoutMs: 5_000 })
      server = await startServer({ SANDYARD_DRIVER: driver, SANDYARD_LOG_LEVEL: 'debug' })
      cleanups.defer(() => server.close())
    })
    after(() => cleanups.disposeAsync())

    test('msb creates a sandbox that reaches one name alone', async () => {
      const rule = ['--net-default', 'deny', '--net-rule', 'allow@good.example:tcp:80']
      const made = await runMsb(server, ['create', DEMO_IMAGE, '--name', 'named', ...rule])
      assert.equal(made.code, 0, made.stderr)
      const { id } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'named' } })
      assert.match(await inside('named', request('good.example', '/first')), /^HTTP\/1.1 200 OK/)
      assert.match(
        await inside('named', request('good.example', '/second', 'other.example')),
        /^HTTP\/1.1 403 Forbidden/,
      )
      assert.equal(await inside('named', 'getent hosts other.example || echo unknown'), 'unknown\n')
      assert.match(await inside('named', request(OUTSIDE.otherPublic, '/third')), /^HTTP\/1.1 403 Forbidden/)
      const arrived = await outside.ask({ kind: 'takeRequests' })
      assert.ok(arrived.includes('/first') && !arrived.includes('/second'), arrived)
      assert.match(await logOf(id), /connection to 44\.0\.113\.10:80 \(other\.example\) refused/)
    })

    test('a sandbox uses a secret that it never sees, over TLS that it trusts', async () => {
      const secrets = {
        entries: [{ env_var: 'API_KEY', value: VALUE, allowed_hosts: [{ type: 'exact', value: 'good.example' }] }],
      }
      const tls = { enabled: true, scoped_upstream_ca_cert: [], upstream_ca_cert: [upstreamCa] }
      const { id } = await mustCall(server, 'create_sandbox', {
        query: RUNNING,
        body: {
          name: 'keyed',
          image: DEMO_IMAGE,
          network: { secrets, tls },
          mounts: [await storeTool(server, 'openssl')],
        },
      })
      assert.equal(await inside('keyed', 'echo $API_KEY'), '$MSB_API_KEY\n')
      const reply = await inside('keyed', secureRequest('good.example'))
      assert.match(reply, /HTTP\/1.1 200 OK/)
      const arrived = await outside.ask({ kind: 'takeRequests' })
      assert.ok(arrived.includes(`"authorization":"Bearer ${VALUE}"`), arrived)
      const refused = await inside('keyed', secureRequest('other.example'))
      assert.match(refused, /403 Forbidden.*secret_policy_denied/s)
      assert.equal(await outside.ask({ kind: 'takeRequests' }), '')
      const log = await logOf(id)
      assert.match(log, /\$MSB_API_KEY of API_KEY in the header/)
      const everywhere = [log, server.output(), readProcesses()]
      assert.ok(!everywhere.join('\n').includes(VALUE))
    })

    test('after the worker was killed, the sandbox uses its secret again', async () => {
      await server.kill9()
      await server.start()
      await waitUntil(async () => (await inside('keyed', secureRequest('good.example'))).includes('200 OK'))
      const arrived = await outside.ask({ kind: 'takeRequests' })
      assert.ok(arrived.includes(`"authorization":"Bearer ${VALUE}"`), arrived)
      assert.ok(!arrived.includes('$MSB_API_KEY'), arrived)
    })

    test('a secret that demands it ends the sandbox', async () => {
      const entry = { env_var: 'KEY', value: VALUE, allowed_hosts: [{ type: 'exact', value: 'good.example' }] }
      const secrets = { entries: [{ ...entry, violation_action: { type: 'block_and_terminate' } }] }
      const { id } = await mustCall(server, 'create_sandbox', {
        query: RUNNING,
        body: { name: 'strict', image: DEMO_IMAGE, network: { secrets } },
      })
      await inside('strict', `${request('other.example', '/$MSB_KEY')} 2>/dev/null`)
      await waitUntil(async () => {
        const reply = await call(server, 'get_sandbox', { params: { sandbox_id: id } })
        return !reply.isRefusal && ['stopped', 'failed'].includes(reply.body.status)
      })
    })

    test('a secret that is added while the sandbox is stopped is there at its next start', async () => {
      const { id } = await mustCall(server, 'create_sandbox', {
        query: RUNNING,
        body: { name: 'later', image: DEMO_IMAGE },
      })
      assert.equal(await inside('later', 'echo "[$LATE_KEY]"'), '[]\n')
      await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
      await waitUntil(
        async () => (await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })).status === 'stopped',
      )
      const entry = { name: 'LATE_KEY', value: VALUE, allowed_hosts: [{ type: 'exact', value: 'good.example' }] }
      await mustCall(server, 'modify_sandbox', {
        params: { sandbox_id: id },
        body: { policy: 'next_start', secrets: [entry] },
      })
      await mustCall(server, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
      assert.equal(await inside('later', 'echo "[$LATE_KEY]"'), '[$MSB_LATE_KEY]\n')
    })

    test('the presets of the SDK open what their names say', async () => {
      await ip([`addr add ${PRIVATE}/32 dev eth0`], 'outside')
      const sdk = await loadSdk(server)
      const reach = async (name: string, policy: NetworkPolicy): Promise<readonly string[]> => {
        const builder = sdk.Sandbox.builder(name).image(DEMO_IMAGE).cpus(1).memory(256)
        const box = await builder
          .network((network) => network.policy(policy))

          .create()
        const said = await Promise.all(
          [OUTSIDE.public, PRIVATE, OUTSIDE.metadata].map(async (address) => {
            const connecting = `timeout 3 bash -c 'exec 3<>/dev/tcp/${address}/80' 2>/dev/null`
            return (await box.shell(`${connecting} && echo open || echo closed`)).stdout().trim()
          }),
        )
        await box.stop()
        await sdk.Sandbox.remove(name)
        return said
      }
      assert.deepEqual(await reach('public', sdk.NetworkPolicy.fromProfiles(['public'])), ['open', 'closed', 'closed'])
      assert.deepEqual(await reach('all', sdk.NetworkPolicy.allowAll()), ['open', 'open', 'closed'])
      assert.deepEqual(await reach('none', sdk.NetworkPolicy.none()), ['closed', 'closed', 'closed'])
    })

    test('names that the SDK denies do not exist, and its secrets go to no other host', async () => {
      const sdk = await loadSdk(server)
      const denied = new sdk.NetworkPolicyBuilder()
        .defaultDeny()
        .egress((rule) => rule.denyDomain('other.example').denyDomainSuffix('evil.example').allowPublic())
        .egress((rule) => rule.udp().tcp().port(53).allowHost())
      const box = await sdk.Sandbox.builder('by-sdk')
        .image(DEMO_IMAGE)
        .cpus(1)
        .memory(256)
        .network((network) => network.policyFromBuilder(denied))
        .secretEnv('TOKEN', VALUE, 'good.example')
        .create()
      const lookUp = async (name: string): Promise<string> =>
        (await box.shell(`getent hosts ${name} >/dev/null && echo exists || echo unknown`)).stdout().trim()
      const names = ['good.example', 'other.example', 'deep.evil.example', 'third.example']
      assert.deepEqual(await Promise.all(names.map(lookUp)), ['exists', 'unknown', 'unknown', 'exists'])
      assert.equal((await box.shell('echo $TOKEN')).stdout(), '$MSB_TOKEN\n')
      await outside.ask({ kind: 'takeRequests' })
      const sent = await box.exec('bash', ['-c', request('third.example', '/$MSB_TOKEN')])
      assert.match(sent.stdout(), /403 Forbidden/)
      assert.equal(await outside.ask({ kind: 'takeRequests' }), '')
      await box.stop()
      await sdk.Sandbox.remove('by-sdk')
    })

    async function inside(name: string, script: string): Promise<string> {
      const { stdout } = await runMsb(server, ['exec', name, '--', 'bash', '-c', script])
      return stdout
    }

    async function logOf(id: string): Promise<string> {
      const url = `${server.url}/v1/sandboxes/${id}/logs?follow=false&sources=system`
      return await (await fetch(url, { headers: { authorization: `Bearer ${server.key}` } })).text()
    }
  })
}

/** A script that sends a plain request to a name and prints the reply. */
function request(name: string, path: string, host = name): string {
  const lines = `GET ${path} HTTP/1.1\\r\\nHost: ${host}\\r\\nConnection: close\\r\\n\\r\\n`
  return `exec 3<>/dev/tcp/${name}/80 && printf '${lines}' >&3 && cat <&3`
}

/** A script that sends a request with the placeholder over TLS, verified by the bundle of the image. */
function secureRequest(name: string): string {
  const lines = `GET / HTTP/1.1\\r\\nHost: ${name}\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\n\\r\\n`
  const openssl = `${guestTool('openssl')} s_client`
  const client = `${openssl} -quiet -verify_return_error -servername ${name} -connect ${name}:443`
  return `(printf '${lines}' "$API_KEY"; sleep 1) | (${client})`
}
