import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { runProgram } from '../support/program.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// The page of operators, and a member of two organizations, in a browser.

describe('the installation in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  before(async () => {
    world = await openDashboard()
    const body = { name: 'seen', image: DEMO_IMAGE }
    await mustCall(world.server, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
  })
  after(() => world.close())

  test('a member who is no operator does not see the page', async () => {
    const page = await world.open('/', { role: 'admin' })
    await page.getByRole('link', { name: 'Usage' }).waitFor()
    assert.equal(await page.getByRole('link', { name: 'Installation' }).count(), 0)
    await page.goto(`${world.server.url}/installation`)
    await page.getByText('forbidden').first().waitFor()
  })

  test('an operator drains the worker, sees what waits and why, and resumes it', async () => {
    await (await world.open('/')).close()
    await world.member('operator', 'owner@example.org', 'on')
    const page = await world.open('/')
    await page.getByRole('link', { name: 'Installation' }).click()
    const worker = page.getByRole('region', { name: 'Workers' }).getByRole('row', { name: /local live oci/ })
    await worker.waitFor()
    await page.getByRole('region', { name: 'Running sandboxes' }).getByRole('row', { name: /seen default local/ }).waitFor() // prettier-ignore
    await page.getByText('No sandbox waits.').waitFor()
    await page.getByRole('region', { name: 'Organizations' }).getByRole('row', { name: /^default default/ }).waitFor() // prettier-ignore
    await page.getByRole('region', { name: 'Plans' }).getByRole('row', { name: /^standard/ }).waitFor() // prettier-ignore
    await page.getByRole('region', { name: 'Servers' }).getByRole('row').nth(1).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'installation')

    await worker.getByRole('button', { name: 'Drain' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click()
    await page.getByRole('row', { name: /local draining/ }).waitFor()
    await mustCall(world.server, 'create_sandbox', { query: { start: 'true' }, body: { name: 'queued', image: DEMO_IMAGE } }) // prettier-ignore
    await page.getByRole('region', { name: 'Waiting sandboxes' }).getByRole('row', { name: /queued default .*worker/ }).waitFor() // prettier-ignore
    await assertAccessible(page)
    await page.getByRole('row', { name: /local draining/ }).getByRole('button', { name: 'Resume' }).click() // prettier-ignore
    await page.getByRole('region', { name: 'Running sandboxes' }).getByRole('row', { name: /queued default local/ }).waitFor() // prettier-ignore
    await page.getByText('No sandbox waits.').waitFor()
  })

  test('a member of two organizations chooses one, and sees what is in it', async () => {
    const { code, output } = await runProgram(['org', 'create', 'Second', '--owner', 'owner@example.org'], { SANDYARD_DATA_DIR: world.server.dataDir }) // prettier-ignore
    assert.equal(code, 0, output)
    const page = await world.open('/')
    await page.getByRole('link', { name: 'seen' }).waitFor()
    await page.getByLabel('Organization').selectOption({ label: 'Second' })
    await page.getByRole('heading', { name: 'Start your first sandbox' }).waitFor()
    assert.equal(await page.getByRole('link', { name: 'Installation' }).count(), 0, 'operators act in the first one')
    await assertAccessible(page)
    await page.getByLabel('Organization').selectOption({ index: 0 })
    await page.getByRole('link', { name: 'seen' }).waitFor()
  })
})
