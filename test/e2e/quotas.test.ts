import assert from 'node:assert/strict'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { call } from '../support/api.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The operator sets limits and suspends organizations while the server runs. The tests check what the unmodified public
// SDK gets.

describe('limits met by the SDK', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  async function sandyard(line: string): Promise<void> {
    const child = spawnProgram(line.split(' '), { SANDYARD_DATA_DIR: server.dataDir })
    assert.ok(child.stderr !== null)
    const [err] = await Promise.all([text(child.stderr), once(child, 'exit')])
    assert.equal(child.exitCode, 0, `${line}: ${err}`)
  }

  test('without limits every limit is null, and the reply fits our schema and the published API document', async () => {
    const { body, isRefusal } = await call(server, 'get_quotas')
    assert.ok(!isRefusal)
    assert.deepEqual([body.max_sandboxes, body.included_vcpu_hours, body.total_sandboxes], [null, null, 0])
  })

  test('the SDK gets the name, the value and the use of an exceeded limit and how to change it, and succeeds once it is raised', async () => {
    await sandyard('quota set max_concurrent_ephemeral_running 1')
    await sandyard('quota set max_vcpus_per_sandbox 2')
    const first = await sdk.Sandbox.builder('first').image(DEMO_IMAGE).ephemeral(true).create()
    await assert.rejects(
      sdk.Sandbox.builder('second').image(DEMO_IMAGE).ephemeral(true).create(),
      /max_concurrent_ephemeral_running is 1 sandboxes, 1 are in use and 1 more was requested; .*sandyard quota set max_concurrent_ephemeral_running VALUE --org default/,
    )
    await assert.rejects(
      sdk.Sandbox.builder('large').image(DEMO_IMAGE).cpus(3).create(),
      /max_vcpus_per_sandbox is 2 vcpus and 3 were requested/,
    )
    const { body, isRefusal } = await call(server, 'get_quotas')
    assert.ok(!isRefusal)
    const { max_concurrent_ephemeral_running, concurrent_ephemeral_running, total_sandboxes } = body
    assert.deepEqual([max_concurrent_ephemeral_running, concurrent_ephemeral_running, total_sandboxes], [1, 1, 1])
    await sandyard('quota set max_concurrent_ephemeral_running 2')
    const second = await sdk.Sandbox.builder('second').image(DEMO_IMAGE).ephemeral(true).create()
    for (const box of [first, second]) await box.stop()
  })

  test('suspending an organization stops its sandbox and refuses starts until it is resumed', async () => {
    await sdk.Sandbox.builder('stays').image(DEMO_IMAGE).create()
    const statusOf = async (): Promise<string> => {
      const { body, isRefusal } = await call(server, 'get_sandbox_by_name', { params: { name: 'stays' } })
      assert.ok(!isRefusal)
      return body.status
    }
    await sandyard('org suspend default --reason unpaid')
    await waitUntil(async () => (await statusOf()) === 'stopped', 30_000)
    await assert.rejects(sdk.Sandbox.builder('later').image(DEMO_IMAGE).create(), /organization suspended/)
    await sandyard('org resume default')
    const again = await sdk.Sandbox.start('stays')
    assert.equal(await statusOf(), 'running')
    await again.stop()
  })
})
