import { useState } from 'preact/hooks'
import { useLoad } from '../lib/load.ts'
import { mayWrite } from '../lib/session.ts'
import { Dialog } from '../ui/dialog.tsx'
import { Load } from '../ui/load.tsx'
import { attempt, toast } from '../ui/toast.tsx'
import { nameOf, type FileEntry, type FileStore } from './file-store.ts'

type EditorProps = { readonly store: FileStore; readonly entry: FileEntry; readonly onClose: () => void }

/** Shows a small text file, and saves it. */
export function FileEditor({ store, entry: { path }, onClose }: EditorProps) {
  const loaded = useLoad(async () => decode(await store.read(path, () => undefined)), [path])
  const [text, setText] = useState<string | null>(null)
  const save = async (): Promise<void> => {
    await store.write(path, new Blob([text ?? '']), () => undefined)
    toast(`Saved ${nameOf(path)}`)
    onClose()
  }
  return (
    <Dialog title={nameOf(path)} isWide onClose={onClose}>
      <Load of={loaded}>
        {(content) =>
          content === null ? (
            <p>This is not a text. Download it to open it with a program of yours.</p>
          ) : (
            <textarea
              class="editor"
              aria-label={`Content of ${nameOf(path)}`}
              spellcheck={false}
              readOnly={!mayWrite.value}
              defaultValue={content}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          )
        }
      </Load>
      <footer>
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
        {mayWrite.value ? (
          <button type="button" class="button primary" disabled={text === null} onClick={() => attempt(save)}>
            Save
          </button>
        ) : null}
      </footer>
    </Dialog>
  )
}

/** The text of UTF-8 bytes, or null for other bytes. */
async function decode(content: Blob): Promise<string | null> {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await content.arrayBuffer())
    return text.includes('\0') ? null : text
  } catch {
    return null
  }
}
