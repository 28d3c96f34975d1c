import assert from 'node:assert/strict'
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { call, mustCall } from '../support/api.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { runProgram } from '../support/program.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// `sandyard down` and `sandyard uninstall`, in order, on one installation with running sandboxes.

describe('down and uninstall', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer({ SANDYARD_SHUTDOWN: 'keep' })
  })
  after(() => server.close())

  const operate = (...args: readonly string[]) => runProgram(args, { SANDYARD_DATA_DIR: server.dataDir })
  const run = (name: string) =>
    mustCall(server, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: { name, image: DEMO_IMAGE },
    })
  const statusOf = async (name: string): Promise<string> => {
    const answer = await call(server, 'get_sandbox_by_name', { params: { name } })
    return answer.isRefusal ? answer.text : answer.body.status
  }

  test('down ends the server and its sandboxes, leaves nothing but the data, and the next start says so', async () => {
    await run('kept')
    const { code, output } = await operate('down')
    assert.equal(code, 0, output)
    assert.match(output, /stopped 1 sandboxes/)
    assert.deepEqual(await findLeftovers(server.dataDir), [])
    await server.start()
    assert.equal(await statusOf('kept'), 'stopped')
  })

  test('down cleans up after a crash of the server, and may be repeated', async () => {
    await run('crashed')
    await server.kill9()
    assert.notDeepEqual(await findLeftovers(server.dataDir), [])
    for (let times = 0; times < 2; times++) {
      const { code, output } = await operate('down')
      assert.equal(code, 0, output)
      assert.deepEqual(await findLeftovers(server.dataDir), [])
    }
  })

  test('uninstall deletes nothing without --yes, and then all that is ours', async () => {
    const refused = await operate('uninstall')
    assert.deepEqual([refused.code, existsSync(join(server.dataDir, 'database'))], [2, true], refused.output)
    assert.match(refused.output, /--yes/)
    await server.start()
    writeFileSync(join(server.dataDir, 'notes.txt'), 'not of Sandyard')
    const { code, output } = await operate('uninstall', '--yes')
    assert.equal(code, 0, output)
    assert.deepEqual(readdirSync(server.dataDir), ['notes.txt'], output)
    assert.match(output, /notes\.txt/)
    const again = await operate('uninstall', '--yes')
    assert.deepEqual([again.code, /nothing to remove/.test(again.output)], [0, true], again.output)
  })
})
