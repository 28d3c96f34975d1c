import type { Readable } from 'node:stream'

/** The longest line that is kept. The rest of a longer one is dropped, so that an endless line takes no memory. */
const MAX_LINE_CHARACTERS = 4096

/** Calls `onLine` for each line of a stream that a sandbox writes, and resolves when the stream has closed. */
export function eachLine(stream: Readable | null, onLine: (line: string) => void): Promise<void> {
  return new Promise((resolve) => {
    let rest = ''
    stream?.setEncoding('utf8').on('data', (text: string) => {
      const lines = `${rest}${text}`.split('\n')
      rest = (lines.pop() ?? '').slice(0, MAX_LINE_CHARACTERS)
      for (const line of lines) onLine(line.slice(0, MAX_LINE_CHARACTERS))
    })
    if (stream === null || stream.closed) resolve()
    else stream.once('close', resolve)
  })
}
