// `node dashboard/build.mjs FOLDER` builds the dashboard into a folder: one page, and files whose names have a hash of their
// content. Beside each file it writes what servers send to browsers that take compressed replies. setup/dashboard.mjs runs it.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import { build } from 'vite'

const target = resolve(process.argv[2] ?? '')

await build({
  root: import.meta.dirname,
  configFile: false,
  logLevel: 'warn',
  build: {
    outDir: target,
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0, // the Content-Security-Policy allows no `data:` in scripts and styles
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})

for (const name of readdirSync(target, { recursive: true })) {
  const path = join(target, String(name))
  if (!/\.(?:html|js|css|svg)$/.test(path)) continue
  const content = readFileSync(path)
  const params = { [constants.BROTLI_PARAM_SIZE_HINT]: content.length }
  writeFileSync(`${path}.br`, brotliCompressSync(content, { params }))
  writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }))
}
