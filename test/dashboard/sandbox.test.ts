import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { guestTool, storeTool } from '../support/guest-tools.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// One sandbox, as a person uses it in a browser.

/** Writes a line at times, uses the processor a little, and serves a page. */
const WORKLOAD = `
require('node:http').createServer((_, res) => res.setHeader('content-type', 'text/html').end('<h1>Hello from the sandbox</h1>')).listen(8000)
let count = 0
setInterval(() => { for (let n = 0; n < 3e7; n++); console.log('tick ' + ++count) }, 300)
`
const UPLOAD_BYTES = 3_000_000

describe('a sandbox in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  let box: SandboxBody
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-dashboard-'))
  before(async () => {
    world = await openDashboard()
    const tool = await storeTool(world.server, 'node')
    const cmd = ['sh', '-c', `cat >/root/app.js <<'EOF'\n${WORKLOAD}\nEOF\n${guestTool('node')} /root/app.js`]
    box = await mustCall(world.server, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: { name: 'web', image: DEMO_IMAGE, runtime: { cmd }, mounts: [tool], labels: { team: 'web' } },
    })
  })
  after(async () => {
    rmSync(folder, { recursive: true, force: true })
    await world.close()
  })

  const pages: Page[] = []
  const open = async (tab: string): Promise<Page> => {
    const page = await world.open(`/sandboxes/${box.id}${tab === '' ? '' : `/${tab}`}`)
    pages.push(page)
    return page
  }
  // A page that looks for ports at times would complain when a later test stops the sandbox.
  afterEach(async () => {
    for (const page of pages.splice(0)) await page.context().close()
  })
  /** Waits until the terminal shows a text. */
  const shows = (page: Page, text: string, name = 'Terminal 1') =>
    page.getByRole('region', { name }).locator('.xterm-rows').getByText(text).first().waitFor()

  test('the overview has the facts, the events with their causes, and plots that go on', async () => {
    const page = await open('')
    await page
      .getByRole('figure', { name: 'Processor' })
      .getByText(/used [1-9]/)
      .waitFor()
    await page.getByText(box.slug).waitFor()
    const events = page.getByRole('listitem')
    await events
      .filter({ hasText: 'Running' })
      .getByText(/image .* ms/)
      .waitFor()
    await events.filter({ hasText: 'Created' }).getByText('key').waitFor()
    for (const name of ['Memory', 'Disk', 'Network']) await page.getByRole('figure', { name }).waitFor()
    const before = await page.getByRole('figure', { name: 'Memory' }).locator('canvas').screenshot()
    await assertAccessible(page)
    await page.waitForResponse(/metrics/)
    const later = await page.getByRole('figure', { name: 'Memory' }).locator('canvas').screenshot()
    assert.notDeepEqual(later, before, 'the plot did not go on')
    await takePicture(page, 'plots')
  })

  test('a terminal takes what is typed and pasted, follows the size of the window, and has several tabs', async () => {
    const page = await open('terminal')
    await shows(page, '#')
    await page.keyboard.type('echo $((40+2))-typed; stty size\n')
    await shows(page, '42-typed')
    await assertAccessible(page)
    await takePicture(page, 'terminal')
    await page.keyboard.type(
      's=$(stty size); while [ "$s" = "$(stty size)" ]; do sleep 0.05; done; echo resized-$((1+1))\n',
    )
    await page.setViewportSize({ width: 800, height: 600 })
    await shows(page, 'resized-2')
    await page.evaluate(`(() => {
      const data = new DataTransfer()
      data.setData('text/plain', 'echo pasted-$((6*7))\\n')
      document.activeElement.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))
    })()`)
    await shows(page, 'pasted-42')
    await page.getByRole('button', { name: 'New terminal' }).click()
    await shows(page, '#', 'Terminal 2')
    await page.keyboard.type('echo second-$((1+1))\n')
    await shows(page, 'second-2', 'Terminal 2')
    await page.getByRole('button', { name: 'Close terminal 2' }).click()
    await shows(page, 'pasted-42')
  })

  test('a terminal whose shell has ended says so, connects again, and loses nothing that is typed meanwhile', async () => {
    const page = await open('terminal')
    await shows(page, '#')
    await page.keyboard.type('exit 3\n')
    await page.getByText('exit code 3').waitFor()
    await page.getByRole('button', { name: 'Connect again' }).click()
    // Without a wait for the prompt: the shell gets what was typed before it started.
    await page.keyboard.type('echo again-$((1+1))\n')
    await shows(page, 'again-2')
  })

  test('files are uploaded, downloaded unchanged, edited and removed', async () => {
    const page = await open('files')
    const content = randomBytes(UPLOAD_BYTES)
    const hash = createHash('sha256').update(content).digest('hex')
    writeFileSync(join(folder, 'data.bin'), content)
    await page.getByRole('button', { name: 'root/' }).click()
    await page.locator('input[type=file]').setInputFiles(join(folder, 'data.bin'))
    await page.getByRole('button', { name: 'data.bin', exact: true }).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'files')
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download data.bin' }).click()]) // prettier-ignore
    assert.equal(download.suggestedFilename(), 'data.bin')
    assert.equal(
      createHash('sha256')
        .update(readFileSync(await download.path()))
        .digest('hex'),
      hash,
    )
    await page.getByRole('button', { name: 'app.js', exact: true }).click()
    const editor = page.getByLabel('Content of app.js')
    assert.match(await editor.inputValue(), /Hello from the sandbox/)
    await editor.fill('// changed\n')
    await assertAccessible(page)
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByText('Saved app.js').waitFor()
    await page.getByRole('button', { name: 'app.js', exact: true }).click()
    assert.equal(await page.getByLabel('Content of app.js').inputValue(), '// changed\n')
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).first().click()
    await page.getByRole('button', { name: 'New folder' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('kept')
    await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
    await page.getByRole('button', { name: 'kept/' }).waitFor()
    await page.getByRole('button', { name: 'Remove kept' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click()
    await page.getByRole('button', { name: 'kept/' }).waitFor({ state: 'detached' })
  })

  test('dropped files are uploaded', async () => {
    const page = await open('files')
    await page.getByRole('button', { name: 'tmp/' }).click()
    await page.getByRole('button', { name: 'New folder' }).waitFor()
    await page.evaluate(`(() => {
      const data = new DataTransfer()
      data.items.add(new File(['dropped here'], 'drop.txt'))
      document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))
    })()`)
    await page.getByRole('button', { name: 'drop.txt', exact: true }).click()
    assert.equal(await page.getByLabel('Content of drop.txt').inputValue(), 'dropped here')
  })

  test('the log goes on, is searched and is saved', async () => {
    const page = await open('logs')
    const lines = page.getByRole('log').locator('> div')
    await lines.filter({ hasText: /tick 1$/ }).waitFor()
    await lines.nth(await lines.count()).waitFor()
    await assertAccessible(page)
    await page.getByLabel('Find in the log').fill('tick 2')
    await page.getByText(/lines match/).waitFor()
    assert.equal(await lines.filter({ hasText: /tick 1$/ }).count(), 0)
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download' }).click()]) // prettier-ignore
    assert.match(readFileSync(await download.path(), 'utf8'), /\ntick 1\ntick 2\n/)
  })

  test('a port that a program listens at opens by one click', async () => {
    const page = await open('ports')
    await page.getByRole('button', { name: 'Open port 8000' }).click()
    const link = page.getByRole('link', { name: 'Open port 8000' })
    await link.waitFor()
    await page.getByRole('cell', { name: 'whoever has the link' }).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'ports')
    const [preview] = await Promise.all([page.context().waitForEvent('page'), link.click()])
    await preview.getByRole('heading', { name: 'Hello from the sandbox' }).waitFor()
    await takePicture(preview, 'preview')
    await page.getByRole('button', { name: 'Close', exact: true }).click()
    await page.getByRole('cell', { name: 'whoever has the link' }).waitFor({ state: 'detached' })
  })

  test('a snapshot is made, and a copy of the sandbox', async () => {
    const page = await open('snapshots')
    await page.getByLabel('Name', { exact: true }).fill('first')
    await page.getByRole('button', { name: 'Take a snapshot' }).click()
    await page.getByRole('cell', { name: 'first' }).waitFor()
    await assertAccessible(page)
    await page.getByLabel('Name of the copy').fill('web copy')
    await page.getByRole('button', { name: 'Fork' }).click()
    await page.getByRole('heading', { level: 1, name: 'web copy' }).waitFor()
  })

  test('the specification says what is enforced by which means, and snippets name the sandbox', async () => {
    const page = await open('specification')
    await page.getByText('"memory_mib": 512').waitFor()
    await page
      .getByText(/user namespace|crun|runsc/)
      .first()
      .waitFor()
    await assertAccessible(page)
    await page.getByRole('link', { name: 'Connect' }).click()
    await page.getByText(`ssh -p 2222 ${box.slug}@127.0.0.1`).waitFor()
    await assertAccessible(page)
  })

  test('a sandbox that is stopped and deleted says so', async () => {
    const page = await open('terminal')
    await shows(page, '#')
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByRole('heading', { name: 'The sandbox does not run' }).waitFor()
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('heading', { name: 'Sandboxes', level: 1 }).waitFor()
  })
})
