// Forked by forked-client.ts: a well-behaved client that reports each answer to its parent, until a message or the end of
// the parent stops it.
import { runWellBehavedClient } from './well-behaved-client.ts'

const [url = '', key = '', prefix = ''] = process.argv.slice(2)
const over = new AbortController()
for (const event of ['message', 'disconnect']) process.once(event, () => over.abort())
await runWellBehavedClient({
  url,
  key,
  prefix,
  signal: over.signal,
  onAnswer: (answer) => {
    if (process.connected) process.send?.(answer)
  },
})
if (process.connected) process.disconnect()
