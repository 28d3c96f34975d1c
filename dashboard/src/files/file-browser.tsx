import { useState } from 'preact/hooks'
import { bytes, dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { saveFile } from '../lib/save-file.ts'
import { mayWrite } from '../lib/session.ts'
import { confirm } from '../ui/confirm.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { Form, TextField } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Empty } from '../ui/page.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'
import { FileEditor } from './file-editor.tsx'
import { joinPath, nameOf, type FileEntry, type FileStore } from './file-store.ts'

/** Larger files are not held in the memory of a page. */
const DOWNLOAD_MAX_BYTES = 512 * 1024 * 1024
const EDIT_MAX_BYTES = 256 * 1024

type Transfer = { readonly name: string; readonly doneBytes: number; readonly ofBytes: number }
type BrowserProps = { readonly store: FileStore; readonly start: string }

/** Folders and files: browse, upload by a button or by dropping files, download, edit small texts. */
export function FileBrowser({ store, start }: BrowserProps) {
  const [folder, setFolder] = useState(start)
  const [transfer, setTransfer] = useState<Transfer | null>(null)
  const [edited, setEdited] = useState<FileEntry | null>(null)
  const [isNaming, setNaming] = useState(false)
  const [isOver, setOver] = useState(false)
  const loaded = useLoad(() => store.list(folder), [store, folder])

  const upload = async (files: readonly File[]): Promise<void> => {
    try {
      for (const file of files) {
        const show = (doneBytes: number): void => setTransfer({ name: file.name, doneBytes, ofBytes: file.size })
        show(0)
        await store.write(joinPath(folder, file.name), file, show)
        toast(`Uploaded ${file.name}`)
      }
    } finally {
      setTransfer(null)
      loaded.reload()
    }
  }
  const download = async ({ path, size }: FileEntry): Promise<void> => {
    if (size > DOWNLOAD_MAX_BYTES)
      throw new Error(`${nameOf(path)} is larger than ${bytes(DOWNLOAD_MAX_BYTES)}. Copy it with scp or msb.`)
    try {
      const show = (doneBytes: number): void => setTransfer({ name: nameOf(path), doneBytes, ofBytes: size })
      saveFile(nameOf(path), await store.read(path, show))
    } finally {
      setTransfer(null)
    }
  }
  const removeIt = async (entry: FileEntry): Promise<void> => {
    const text = entry.isFolder ? 'The folder is removed with everything in it.' : 'There is no way back.'
    if (!(await confirm({ title: `Remove ${nameOf(entry.path)}?`, text, action: 'Remove' }))) return
    await store.remove(entry)
    loaded.reload()
  }

  const canEdit = ({ isFolder, size }: FileEntry): boolean => !isFolder && size <= EDIT_MAX_BYTES
  return (
    <div
      class={isOver ? 'drop stack is-over' : 'drop stack'}
      onDragOver={(event) => {
        event.preventDefault()
        setOver(true)
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault()
        setOver(false)
        const files = [...(event.dataTransfer?.files ?? [])]
        if (mayWrite.value) attempt(() => upload(files))
      }}
    >
      <div class="row">
        <Crumbs folder={folder} onOpen={setFolder} />
        {mayWrite.value ? (
          <div class="actions">
            <label class="button small">
              Upload
              <input
                class="hidden"
                type="file"
                multiple
                onChange={(event) => {
                  const files = [...(event.currentTarget.files ?? [])]
                  attempt(() => upload(files))
                }}
              />
            </label>
            <button type="button" class="button small" onClick={() => setNaming(true)}>
              New folder
            </button>
          </div>
        ) : null}
      </div>
      {transfer === null ? null : (
        <label>
          {transfer.name}: {bytes(transfer.doneBytes)} of {bytes(transfer.ofBytes)}
          <progress max={Math.max(1, transfer.ofBytes)} value={transfer.doneBytes} />
        </label>
      )}
      <Load of={loaded}>
        {(entries) =>
          entries.length === 0 ? (
            <Empty title="This folder is empty">
              <p>Drop files here to upload them.</p>
            </Empty>
          ) : (
            <Table
              label="Files"
              rows={entries}
              keyOf={({ path }) => path}
              columns={[
                {
                  title: 'Name',
                  cell: (entry) => (
                    <button
                      type="button"
                      class="link"
                      onClick={() => {
                        if (entry.isFolder) setFolder(entry.path)
                        else if (canEdit(entry)) setEdited(entry)
                        else attempt(() => download(entry))
                      }}
                    >
                      {nameOf(entry.path)}
                      {entry.isFolder ? '/' : ''}
                    </button>
                  ),
                },
                { title: 'Size', isNumber: true, cell: ({ isFolder, size }) => (isFolder ? '' : bytes(size)) },
                {
                  title: 'Changed',
                  cell: ({ modifiedMs }) => (modifiedMs === null ? '' : dateTime(new Date(modifiedMs).toISOString())),
                },
                {
                  title: '',
                  cell: (entry) => (
                    <span class="row">
                      {entry.isFolder ? null : (
                        <button
                          type="button"
                          class="button small"
                          aria-label={`Download ${nameOf(entry.path)}`}
                          onClick={() => attempt(() => download(entry))}
                        >
                          Download
                        </button>
                      )}
                      {mayWrite.value ? (
                        <button
                          type="button"
                          class="button small danger"
                          aria-label={`Remove ${nameOf(entry.path)}`}
                          onClick={() => attempt(() => removeIt(entry))}
                        >
                          Remove
                        </button>
                      ) : null}
                    </span>
                  ),
                },
              ]}
            />
          )
        }
      </Load>
      {edited === null ? null : (
        <FileEditor
          store={store}
          entry={edited}
          onClose={() => {
            setEdited(null)
            loaded.reload()
          }}
        />
      )}
      {isNaming ? (
        <Dialog title="New folder" onClose={() => setNaming(false)}>
          <Form
            action="Create"
            onSubmit={async (values) => {
              await store.makeFolder(joinPath(folder, values.text('name')))
              setNaming(false)
              loaded.reload()
            }}
          >
            <TextField label="Name" name="name" isRequired />
          </Form>
        </Dialog>
      ) : null}
    </div>
  )
}

function Crumbs({ folder, onOpen }: { readonly folder: string; readonly onOpen: (path: string) => void }) {
  const parts = folder.split('/').filter((part) => part !== '')
  return (
    <nav class="crumbs" aria-label="Folder">
      <button type="button" class="link" onClick={() => onOpen('/')}>
        root
      </button>
      {parts.map((part, index) => (
        <span key={index}>
          /{' '}
          <button type="button" class="link" onClick={() => onOpen(`/${parts.slice(0, index + 1).join('/')}`)}>
            {part}
          </button>
        </span>
      ))}
    </nav>
  )
}
