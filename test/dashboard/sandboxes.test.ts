import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// The list of sandboxes, as a person uses it in a browser.

describe('the sandboxes in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  before(async () => {
    world = await openDashboard()
  })
  after(() => world.close())

  const create = (name: string, more: object = {}) =>
    mustCall(world.server, 'create_sandbox', { body: { name, image: DEMO_IMAGE, ...more } })

  test('the first page leads to a running sandbox in two clicks', async () => {
    const page = await world.open('/')
    await page.getByRole('heading', { name: 'Start your first sandbox' }).waitFor()
    await assertAccessible(page)
    await page.getByRole('main').getByRole('link', { name: 'New sandbox' }).first().click()
    await page.getByRole('button', { name: 'Create and start' }).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'create')
    await page.getByRole('button', { name: 'Create and start' }).click()
    await page.getByRole('heading', { level: 1 }).getByText('running').waitFor()
  })

  test('what is refused is said at its field, in the words of the API', async () => {
    await create('taken')
    const page = await world.open('/sandboxes/new')
    await page.getByLabel('Name').fill('taken')
    await page.getByRole('button', { name: 'Create and start' }).click()
    await page.getByRole('alert').getByText('taken').waitFor()
    await page.getByLabel('Memory, MiB').fill('99999999999')
    await page.getByRole('button', { name: 'Create and start' }).click()
    await page.locator('.field', { hasText: 'Memory, MiB' }).locator('.refusal').waitFor()
    assert.equal(await page.getByLabel('Memory, MiB').getAttribute('aria-invalid'), 'true')
  })

  test('all parts of the form reach the specification', async () => {
    await mustCall(world.server, 'create_volume', { body: { name: 'shared' } })
    const page = await world.open('/sandboxes/new')
    for (const part of ['Workload, environment and labels', 'Lifetime', 'Network and secrets', 'Volumes'])
      await page.locator('summary', { hasText: part }).click()
    await page.getByLabel('Name', { exact: true }).fill('all parts')
    await page.getByLabel('Command').fill('sleep 1000')
    await page.getByLabel('Environment').fill('STAGE=test\nA=b=c')
    await page.getByLabel('Labels').fill('team=web')
    await page.getByLabel('Stop after, minutes').fill('30')
    await page.getByLabel('What it may reach').selectOption('names')
    await page.getByLabel('Names').fill('example.com\n*.example.org')
    await page.getByLabel('Secrets').fill('TOKEN=s3cret @ example.com')
    await page.getByLabel('Mounts').fill('shared:/srv/shared:ro')
    await page.getByRole('button', { name: 'Create and start' }).click()
    await page.getByRole('heading', { level: 1 }).getByText('running').waitFor()
    const { spec } = await mustCall(world.server, 'get_sandbox_by_name', { params: { name: 'all parts' } })
    assert.deepEqual(spec?.env, [{ key: 'STAGE', value: 'test' }, { key: 'A', value: 'b=c' }]) // prettier-ignore
    assert.deepEqual(spec.labels, { team: 'web' })
    assert.equal(spec.lifecycle.max_duration_secs, 1800)
    assert.deepEqual(spec.runtime.cmd, ['sh', '-c', 'sleep 1000'])
    assert.deepEqual(spec.network.policy?.rules.map(({ destination }) => destination), [{ domain: 'example.com' }, { domain_suffix: 'example.org' }]) // prettier-ignore
    assert.equal(spec.network.secrets?.[0]?.env_var, 'TOKEN')
    assert.deepEqual(spec.mounts.map(({ guest, options }) => [guest, options.readonly]), [['/srv/shared', true]]) // prettier-ignore
    assert.ok(!(await page.content()).includes('s3cret'))
  })

  test('the list shows what others do at once, and finds by name, label and status', async () => {
    const page = await world.open('/')
    await page.getByRole('link', { name: 'all parts' }).waitFor()
    await create('made elsewhere', { labels: { team: 'elsewhere' } })
    await page.getByRole('link', { name: 'made elsewhere' }).waitFor()
    const row = page.getByRole('row', { name: /made elsewhere/ })
    await row.getByText('created', { exact: true }).waitFor()
    await mustCall(world.server, 'start_sandbox_by_name', { params: { name: 'made elsewhere' } })
    await row.getByText('running', { exact: true }).waitFor()
    await row.locator('.sparkline').first().waitFor()
    await assertAccessible(page)
    await takePicture(page, 'sandboxes')
    await page.getByRole('searchbox').fill('team=elsewhere')
    await page.getByRole('link', { name: 'all parts' }).waitFor({ state: 'detached' })
    assert.equal(await page.getByRole('row').count(), 2)
    await page.getByRole('searchbox').fill('ALL PARTS')
    await page.getByRole('link', { name: 'all parts' }).waitFor()
    await page.getByRole('searchbox').fill('')
    await page.getByLabel('Status').selectOption('created')
    await page.getByRole('link', { name: 'made elsewhere' }).waitFor({ state: 'detached' })
    await page.getByRole('link', { name: 'taken' }).waitFor()
  })

  test('several are stopped at once, started again by the way back, and deleted after a question', async () => {
    const page = await world.open('/?find=made')
    await page.getByRole('row', { name: /made elsewhere/ }).getByRole('checkbox').check() // prettier-ignore
    await page.getByRole('button', { name: 'Stop', exact: true }).click()
    const row = page.getByRole('row', { name: /made elsewhere/ })
    await page.getByRole('button', { name: 'Start again' }).click()
    await row.getByText('running', { exact: true }).waitFor()
    await row.getByRole('checkbox').check()
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await assertAccessible(page)
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await row.waitFor({ state: 'detached' })
  })

  test('the list is usable on a phone', async () => {
    const page = await world.open('/', { size: 'phone' })
    await page.getByRole('link', { name: 'all parts' }).waitFor()
    await page.locator('.sparkline').first().waitFor()
    const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth')
    assert.ok(Number(overflow) <= 0, `the page is ${String(overflow)} px wider than the screen`)
    await assertAccessible(page)
    await takePicture(page, 'sandboxes-phone')
    await page.getByRole('button', { name: 'Menu' }).click()
    await page.getByRole('link', { name: 'Usage' }).click()
    await page.getByRole('heading', { name: 'Usage', level: 1 }).waitFor()
  })
})
