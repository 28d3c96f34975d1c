import assert from 'node:assert/strict'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { call, mustCall } from '../support/api.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Usage of real sandboxes over HTTP: `call` checks every reply against our schemas and the published API document
// (test/support/contract.ts).

describe('usage over HTTP', { skip: whyNoServer() }, () => {
  let server: RealServer
  let id: string
  before(async () => {
    server = await startServer()
    const query = { start: 'true', wait_for: 'running', wait_timeout: '30' }
    const body = { name: 'metered, "one"', image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 256 } }
    id = (await mustCall(server, 'create_sandbox', { query, body })).id
  })
  after(() => server.close())

  const breakdown = () => mustCall(server, 'get_sandbox_breakdown')

  test('a running sandbox counts up to now, and keeps its usage and its name when it is deleted', async () => {
    const [first] = (await breakdown()).rows
    assert.ok(first)
    assert.equal(first.sandbox_id, id)
    assert.equal(first.mem_mib_seconds, first.vcpu_seconds * 256)
    await waitUntil(async () => ((await breakdown()).rows[0]?.vcpu_seconds ?? 0) > first.vcpu_seconds)
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
    const later = await breakdown()
    assert.ok((later.rows[0]?.vcpu_seconds ?? 0) > first.vcpu_seconds)
    assert.deepEqual(
      later.sandboxes.map(({ id: of, name }) => [of, name]),
      [[id, 'metered, "one"']],
    )
  })

  test('the summary has the same usage in hours, one data point per day and metric, and costs nothing without prices', async () => {
    await waitUntil(async () => {
      const before = await breakdown()
      const usage = await mustCall(server, 'get_usage')
      const seconds = before.rows.reduce((sum, row) => sum + row.vcpu_seconds, 0)
      const [vcpu] = usage.line_items
      return vcpu !== undefined && Math.abs(vcpu.quantity - seconds / 3600) < 1e-12
    })
    const usage = await mustCall(server, 'get_usage')
    assert.deepEqual(
      usage.line_items.map(({ name, unit, amount_cents }) => [name, unit, amount_cents]),
      [
        ['vCPU', 'vCPU-hours', 0],
        ['Memory', 'GiB-hours', 0],
        ['Disk', 'GiB-hours', 0],
        ['Storage', 'GiB-hours', 0],
      ],
    )
    assert.deepEqual([usage.total_cents, usage.projected_spend_cents], [0, 0])
    assert.equal(usage.daily.length % 4, 0)
    assert.ok(new Date(usage.period_end) > new Date(usage.period_start))
    await mustCall(server, 'get_storage_breakdown')
  })

  test('a report by sandbox in pages has the rows of the whole report, and a bad cursor or limit is refused', async () => {
    const whole = await breakdown()
    assert.ok(!('next_cursor' in whole) && !('has_more' in whole))
    const past = { since: '2020-02-02T00:00:00Z', until: '2020-02-03T00:00:00Z', limit: '1' }
    const { rows, has_more, next_cursor } = await mustCall(server, 'get_sandbox_breakdown', { query: past })
    assert.deepEqual([rows, has_more, next_cursor], [[], false, null])
    const pages: (typeof whole)[] = []
    let next: string | undefined
    do {
      const page: typeof whole = await mustCall(server, 'get_sandbox_breakdown', {
        query: next === undefined ? { limit: '1' } : { cursor: next, limit: '1' },
      })
      assert.ok(page.rows.length <= 1)
      pages.push(page)
      next = page.next_cursor ?? undefined
    } while (next !== undefined)
    assert.deepEqual(
      pages.flatMap((page) => page.rows).map(({ sandbox_id, day }) => [sandbox_id, day]),
      whole.rows.map(({ sandbox_id, day }) => [sandbox_id, day]),
    )
    for (const [query, field] of [
      [{ cursor: 'none' }, 'query.cursor'],
      [
        {
          cursor: Buffer.from(JSON.stringify({ v: 1, list: 'usage_by_sandbox', after: `2028-02-31 ${id}` })).toString(
            'base64url',
          ),
        },
        'query.cursor',
      ],
      [{ limit: '0' }, 'query.limit'],
      [{ limit: '10001' }, 'query.limit'],
    ] as const) {
      const answer = await call(server, 'get_sandbox_breakdown', { query })
      assert.equal(answer.status, 400, answer.text)
      assert.ok(answer.text.includes(field), `${answer.text} does not name ${field}`)
    }
  })

  test('a usage query with an invalid range is refused by field, and one for a range before the first run is empty', async () => {
    const ids = ['get_usage', 'get_sandbox_breakdown', 'get_storage_breakdown'] as const
    for (const operation of ids) {
      const wrong = [
        [{ since: 'yesterday' }, 'query.since'],
        [{ until: '2028-02-30T00:00:00Z' }, 'query.until'],
        [{ since: '2020-02-02T00:00:00Z', until: '2020-02-02T00:00:00Z' }, 'query.until'],
        [{ since: '2020-02-02T00:00:00Z', until: '2021-02-03T00:00:00Z' }, 'query.since'],
        [{ from: '2020-02-02T00:00:00Z' }, 'from'],
      ] as const
      for (const [query, field] of wrong) {
        const answer = await call(server, operation, { query })
        assert.equal(answer.status, 400, answer.text)
        assert.ok(answer.text.includes(field), `${answer.text} does not name ${field}`)
      }
    }
    const query = { since: '2020-02-02T00:00:00+02:00', until: '2020-12-31T00:00:00Z' }
    assert.deepEqual((await mustCall(server, 'get_sandbox_breakdown', { query })).rows, [])
    assert.deepEqual((await mustCall(server, 'get_storage_breakdown', { query })).rows, [])
    assert.equal((await mustCall(server, 'get_usage', { query })).line_items[0]?.quantity, 0)
  })

  test('usage export writes a line of CSV for each sandbox and day, and refuses invalid arguments', async () => {
    const exported = await sandyard('usage', 'export')
    assert.equal(exported.code, 0, exported.stderr)
    const [head, ...lines] = exported.stdout.split('\r\n').filter((line) => line !== '')
    assert.equal(head, 'day,sandbox_id,name,slug,vcpu_seconds,memory_mib_seconds,disk_mib_seconds')
    const { rows } = await breakdown()
    assert.equal(lines.length, rows.length)
    for (const [index, row] of rows.entries()) {
      const line = lines[index] ?? ''
      assert.ok(line.startsWith(`${row.day.slice(0, 10)},${id},"metered, ""one""",`), line)
      assert.ok(line.includes(`,${row.vcpu_seconds.toFixed(3)},${row.mem_mib_seconds.toFixed(3)},`), line)
    }
    const past = await sandyard('usage', 'export', '--since', '2020-01-01', '--until', '2020-12-31T23:59:59.5Z')
    assert.equal(past.stdout, `${head}\r\n`)
    for (const wrong of [
      ['usage'],
      ['usage', 'export', '--since', '30 days ago'],
      ['usage', 'export', '--since', '2020-01-01', '--until', '2020-01-01'],
      ['usage', 'export', '--org', 'nobody'],
    ]) {
      const refused = await sandyard(...wrong)
      assert.deepEqual([refused.code, refused.stdout], [2, ''], `${wrong.join(' ')}: ${refused.stderr}`)
    }
  })

  async function sandyard(...args: readonly string[]) {
    const child = spawnProgram(args, { SANDYARD_DATA_DIR: server.dataDir, SANDYARD_LOG_LEVEL: 'error' })
    child.stdin?.end()
    if (child.stdout === null || child.stderr === null) throw new Error('the program has no output')
    const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
    return { code: child.exitCode, stdout, stderr }
  }
})
