import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// The pages of an organization in a browser, with what a real server tells.

const PUBLIC_KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0pOgKZmtvTM9tP8Fa3wSzqVxYmSxJHmGtVPMDqYxHE me@laptop'

describe('an organization in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  before(async () => {
    world = await openDashboard()
    const body = { name: 'metered', image: DEMO_IMAGE }
    await mustCall(world.server, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
  })
  after(() => world.close())

  test('a key is made, shown once, works, and is revoked', async () => {
    const page = await world.open('/keys')
    await page.getByLabel('Name').fill('ci')
    await page.getByLabel('What it may do').selectOption('read')
    await page.getByLabel('Ends').selectOption('30')
    await page.getByRole('button', { name: 'Create key' }).click()
    const key = await page.getByLabel('Key', { exact: true }).innerText()
    await assertAccessible(page)
    const asked = () => fetch(`${world.server.url}/v1/me/org`, { headers: { authorization: `Bearer ${key.trim()}` } })
    assert.equal((await asked()).status, 200)
    await page.reload()
    const row = page.getByRole('row', { name: /ci active read/ })
    await row.waitFor()
    assert.ok(!(await page.content()).includes(key.trim()))
    await row.getByRole('button', { name: 'Revoke' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click()
    await page.getByRole('row', { name: /ci revoked/ }).waitFor()
    assert.equal((await asked()).status, 401)
  })

  test('SSH keys are added and removed, and a bad one is refused at its field', async () => {
    const page = await world.open('/ssh-keys')
    await page.getByRole('heading', { name: 'No SSH key yet' }).waitFor()
    await page.getByLabel('Name').fill('laptop')
    await page.getByLabel('Public key').fill('not a key')
    await page.getByRole('button', { name: 'Add key' }).click()
    await page.locator('.refusal').waitFor()
    await page.getByLabel('Public key').fill(PUBLIC_KEY)
    await page.getByRole('button', { name: 'Add key' }).click()
    await page.getByRole('cell', { name: /SHA256:/ }).waitFor()
    await assertAccessible(page)
    await page.getByRole('button', { name: 'Remove' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click()
    await page.getByRole('heading', { name: 'No SSH key yet' }).waitFor()
  })

  test('a credential for a registry is saved, never shown, and deleted', async () => {
    const page = await world.open('/registries')
    await page.getByLabel('Host').fill('registry.example.com')
    await page.getByLabel('User name').fill('robot')
    await page.getByLabel('Password or token').fill('very-secret')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByRole('cell', { name: 'registry.example.com' }).waitFor()
    await assertAccessible(page)
    await page.reload()
    await page.getByRole('button', { name: 'Delete' }).click()
    assert.ok(!(await page.content()).includes('very-secret'))
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('heading', { name: 'No credential yet' }).waitFor()
  })

  test('a volume is made with a cap, its files are managed, and it is deleted', async () => {
    const page = await world.open('/volumes')
    await page.getByLabel('Name').fill('data')
    await page.getByLabel('Cap, GiB').fill('1')
    await page.getByRole('button', { name: 'Create volume' }).click()
    await page.getByRole('row', { name: /data .*1.0 GiB/ }).waitFor()
    await assertAccessible(page)
    await page.getByRole('link', { name: 'data' }).click()
    await page.getByRole('heading', { name: 'This folder is empty' }).waitFor()
    const buffer = Buffer.from('on a volume\n')
    await page.locator('input[type=file]').setInputFiles({ name: 'über.txt', mimeType: 'text/plain', buffer })
    await page.getByRole('button', { name: 'Download über.txt' }).waitFor()
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download über.txt' }).click()]) // prettier-ignore
    assert.equal(readFileSync(await download.path(), 'utf8'), 'on a volume\n')
    await page.getByLabel('Cap, GiB').fill('2')
    await page.getByRole('button', { name: 'Change the cap' }).click()
    await page.getByText('of 2.0 GiB').waitFor()
    await assertAccessible(page)
    await page.getByRole('link', { name: 'Volumes' }).click()
    await page.getByRole('row', { name: /data/ }).getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('row', { name: /data/ }).getByRole('button', { name: 'Delete' }).waitFor({ state: 'detached' })
  })

  test('usage has the items, the days, the sandboxes, and a CSV', async () => {
    const page = await world.open('/usage')
    await page.getByRole('cell', { name: /vCPU-hours/ }).waitFor()
    await page.getByRole('figure', { name: 'vCPU by day' }).waitFor()
    await page.getByRole('link', { name: 'metered' }).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'usage')
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Save as CSV' }).first().click()]) // prettier-ignore
    assert.match(readFileSync(await download.path(), 'utf8'), /^day,sandbox_id,name,vcpu_seconds.*\r\n.*,metered,/)
    await page.getByLabel('Month').selectOption('1')
    await page.getByText('Nothing in this time.').first().waitFor()
  })

  test('quotas and members are shown', async () => {
    const page = await world.open('/quotas')
    await page.getByText('1, no limit').first().waitFor()
    await assertAccessible(page)
    await page.getByRole('link', { name: 'Members' }).click()
    await page.getByRole('heading', { name: 'Roles' }).waitFor()
    await assertAccessible(page)
  })

  test('audit events are filtered, shown with their payload, and appear as they happen', async () => {
    const page = await world.open('/audit?category=api_key')
    await page.getByRole('button', { name: 'API key revoked' }).waitFor()
    assert.equal(await page.getByRole('button', { name: 'Sandbox created' }).count(), 0)
    await mustCall(world.server, 'create_api_key', { body: { name: 'seen live' } })
    await page
      .getByRole('row', { name: /seen live/ })
      .getByRole('button')
      .click()
    await page.getByRole('dialog').getByText('"scopes"').waitFor()
    await assertAccessible(page)
  })

  test('a viewer sees everything but keys, and is offered no change', async () => {
    const page = await world.open('/', { role: 'viewer' })
    await page.getByRole('link', { name: 'metered' }).click()
    await page.getByRole('figure', { name: 'Processor' }).waitFor()
    const navigation = page.getByRole('banner')
    for (const name of ['Keys', 'Registries', 'Terminal', 'Files'])
      assert.equal(await page.getByRole('link', { name, exact: true }).count(), 0, name)
    const offered: string[] = []
    for (const name of ['Sandboxes', 'Volumes', 'Usage', 'Quotas', 'Members', 'SSH keys', 'Audit']) {
      await navigation.getByRole('link', { name, exact: true }).click()
      await page.getByRole('heading', { name, level: 1 }).waitFor()
      await page.waitForLoadState('networkidle')
      offered.push(...(await page.getByRole('main').getByRole('button', { name: /^(?:create|new|start|stop|delete|remove|add|save(?! as csv)|revoke|upload)\b/i }).allInnerTexts())) // prettier-ignore
    }
    assert.deepEqual(offered, [])
    await page.goto(new URL('/keys', page.url()).href)
    await page
      .getByRole('alert')
      .getByText(/admin|scope|forbidden/i)
      .waitFor()
  })
})
