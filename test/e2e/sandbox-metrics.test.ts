import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// What real sandboxes use, from a real server that is killed meanwhile.

describe('metrics of real sandboxes', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer({ SANDYARD_METRICS_SANDBOXES: '10' })
  })
  after(() => server.close())

  type Point = { readonly at: string; readonly covered_secs: number; readonly used_vcpus: number }
  const read = async (id: string): Promise<readonly Point[]> => {
    return (await mustCall(server, 'read_sandbox_metrics', { params: { sandbox_id: id }, query: { step: '1' } })).data
  }
  const cpuSecs = (points: readonly Point[]): number =>
    points.reduce((sum, { covered_secs, used_vcpus }) => sum + covered_secs * used_vcpus, 0)

  test('show its work, outlive a killed server and the sandbox’s end, and go with the sandbox', async () => {
    const script = 'while [ ! -e /tmp/rest ]; do :; done; exec sleep 600'
    const { code, stderr } = await runMsb(server, [
      'run',
      '-d',
      '--name',
      'works',
      DEMO_IMAGE,
      '--',
      'sh',
      '-c',
      script,
    ])
    assert.equal(code, 0, stderr)
    const { id } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'works' } })
    await waitUntil(async () => cpuSecs(await read(id)) > 0.5, 30_000)
    const series = await (await fetch(`${server.url}/metrics`)).text()
    assert.match(
      series,
      new RegExp(`sandyard_sandbox_cpu_seconds_total\\{[^}]*sandbox="works",sandbox_id="${id}"\\} \\d`),
    )

    const before = await read(id)
    await server.kill9()
    await server.start()
    await waitUntil(async () => (await read(id)).length > before.length, 30_000)
    const rested = await runMsb(server, ['exec', 'works', '--', 'touch', '/tmp/rest'])
    assert.equal(rested.code, 0, rested.stderr)
    await waitUntil(async () => ((await read(id)).at(-1)?.used_vcpus ?? 1) < 0.1, 30_000)
    assert.deepEqual((await read(id)).slice(0, before.length - 1), before.slice(0, -1)) // the last second went on

    await runMsb(server, ['stop', 'works'])
    const stopped = await read(id)
    assert.ok(cpuSecs(stopped) >= cpuSecs(before))
    await runMsb(server, ['rm', 'works'])
    const { status } = await fetch(`${server.url}/v1/sandboxes/${id}/metrics`, {
      headers: { authorization: `Bearer ${server.key}` },
    })
    assert.equal(status, 404)
  })
})
