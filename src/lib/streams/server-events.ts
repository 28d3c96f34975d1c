/** A Server-Sent Event (HTML standard, "Server-sent events"). */
export type ServerEvent = { readonly id: string | null; readonly type: string; readonly data: string }

/** Parses a stream of Server-Sent Events. Comments are left out. An event that the end of the stream cuts off is dropped. */
export async function* parseServerEvents(body: AsyncIterable<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of body) {
    const blocks = (rest + decoder.decode(chunk, { stream: true })).split('\n\n')
    rest = blocks.pop() ?? ''
    for (const block of blocks) {
      const event = parseEvent(block)
      if (event !== null) yield event
    }
  }
}

function parseEvent(block: string): ServerEvent | null {
  let id: string | null = null
  let type = 'message'
  const data: string[] = []
  for (const line of block.split('\n')) {
    const [, field = '', value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? []
    if (field === 'id') id = value
    if (field === 'event') type = value
    if (field === 'data') data.push(value)
  }
  return data.length === 0 && type === 'message' ? null : { id, type, data: data.join('\n') }
}
