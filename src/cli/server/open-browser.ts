import { spawn } from 'node:child_process'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { printStatus } from '../print-status.ts'

/** How long the page that leads to the link stays. The browser reads it at once. */
const PAGE_KEPT_MS = 60_000

/**
 * Opens a link in the browser of this desktop, by the program in BROWSER or `xdg-open`. The link signs in, and other users of the
 * machine see the arguments of its processes: so the browser gets a page that only the owner can read, which leads to the link.
 * If no browser can be opened, says so.
 */
export async function openBrowser(link: string, folder: string): Promise<void> {
  const page = join(folder, 'sign-in.html')
  await rm(page, { force: true })
  await writeFile(page, renderPage(link), { mode: 0o600, flag: 'wx' })
  setTimeout(() => void rm(page, { force: true }), PAGE_KEPT_MS).unref()
  const [program = ''] = (process.env['BROWSER'] ?? '').split(':')
  const opener = program === '' ? 'xdg-open' : program
  const started = spawn(opener, [pathToFileURL(page).href], { stdio: 'ignore', detached: true })
  started.once('spawn', () => printStatus(`opening the dashboard by ${opener}`))
  started.once('error', ({ message }) => printStatus(`no browser could be opened (${message}): open the link yourself`))
  started.unref()
}

function renderPage(link: string): string {
  const target = JSON.stringify(link).replaceAll('<', String.raw`\u003c`)
  return `<!doctype html><meta charset="utf-8"><title>Sandyard</title><script>location.replace(${target})</script>\n`
}
